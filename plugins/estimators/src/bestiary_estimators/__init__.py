"""Advantage estimators that many algorithms share; each is a component of its own."""

from bestiary import Registry, hookimpl


@hookimpl
def bestiary_register(registry: Registry) -> None:
    """Register each estimator by name; it is imported when chosen."""
    for name, target, options in (
        ("group", "groups:GroupRelative", "GroupOptions"),
        ("dr_grpo", "groups:GroupRelative", "DrGRPOOptions"),
        ("rloo", "groups:RLOO", "RLOOOptions"),
        ("opo", "groups:OPO", "OPOOptions"),
        ("gpg", "groups:GPG", "GPGOptions"),
        ("pass_at_k", "groups:PassAtK", "PassAtKOptions"),
        ("gdpo", "groups:GDPO", "GDPOOptions"),
        ("reinforce", "returns:Returns", "ReturnOptions"),
        ("reinforce_pp", "returns:ReinforcePP", "ReinforcePPOptions"),
        ("reinforce_pp_baseline", "returns:ReinforcePPBaseline", "ReinforcePPBaselineOptions"),
        ("remax", "returns:ReMax", "ReMaxOptions"),
        ("process", "returns:Process", "ProcessOptions"),
        ("otb", "returns:OTB", "OTBOptions"),
        ("gae", "values:GAE", "GAEOptions"),
        ("vtrace", "values:VTrace", "VTraceOptions"),
    ):
        registry.advantage(
            name,
            target=f"bestiary_estimators.{target}",
            options=f"bestiary_estimators.options:{options}",
        )
