"""Group relative policy optimisation and its relatives, members of the bestiary zoo."""

from bestiary import Registry, hookimpl


@hookimpl
def bestiary_register(registry: Registry) -> None:
    """Register the algorithms by name; each is imported when chosen."""
    for name, target, options in (
        ("grpo", "GRPO", "options:GRPOOptions"),
        ("dr_grpo", "GRPO", "variants:DrGRPOOptions"),
        ("dapo", "DAPO", "variants:DAPOOptions"),
        ("gspo", "GRPO", "variants:GSPOOptions"),
        ("cispo", "GRPO", "variants:CISPOOptions"),
        ("sapo", "GRPO", "variants:SAPOOptions"),
        ("gmpo", "GRPO", "variants:GMPOOptions"),
        ("gdpo", "GRPO", "variants:GDPOOptions"),
        ("pass_at_k", "GRPO", "variants:PassAtKOptions"),
    ):
        registry.algorithm(
            name,
            target=f"bestiary_grpo.algorithm:{target}",
            options=f"bestiary_grpo.{options}",
        )
