"""Losses that many algorithms share; each is a component of its own."""

from bestiary import Registry, hookimpl


@hookimpl
def bestiary_register(registry: Registry) -> None:
    """Register each loss by name; it is imported when chosen."""
    for name, target, options in (
        ("clip", "policy:Clip", "ClipOptions"),
        ("clip_higher", "policy:Clip", "ClipHigherOptions"),
        ("clip_constant", "policy:Clip", "ClipConstantOptions"),
        ("clip_cov", "covariance:ClipCov", "ClipCovOptions"),
        ("kl_cov", "covariance:KLCov", "KLCovOptions"),
        ("gspo", "policy:GSPO", "GSPOOptions"),
        ("cispo", "policy:CISPO", "CISPOOptions"),
        ("sapo", "policy:SAPO", "SAPOOptions"),
        ("gmpo", "policy:GMPO", "GMPOOptions"),
        ("reinforce", "policy:Reinforce", "ReinforceOptions"),
        ("dro", "policy:DRO", "DROOptions"),
        ("dppo", "policy:DPPO", "DPPOOptions"),
        ("decoupled", "policy:Decoupled", "DecoupledOptions"),
        ("entropy", "terms:Entropy", "EntropyOptions"),
        ("kl", "terms:KL", "KLOptions"),
        ("kl_full", "terms:KLFull", "KLFullOptions"),
        ("nll", "terms:NLL", "NLLOptions"),
        ("value", "terms:Value", "ValueOptions"),
        ("bradley_terry", "pairs:BradleyTerry", "BradleyTerryOptions"),
        ("cost_preference", "pairs:CostPreference", "CostPreferenceOptions"),
        ("dpo", "pairs:DPO", "DPOOptions"),
    ):
        registry.loss(
            name,
            target=f"bestiary_losses.{target}",
            options=f"bestiary_losses.options:{options}",
        )
