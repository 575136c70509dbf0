"""The REINFORCE family, a member of the bestiary zoo."""

from bestiary import Registry, hookimpl


@hookimpl
def bestiary_register(registry: Registry) -> None:
    """Register the algorithms by name; each is imported when chosen."""
    for name, target, options in (
        ("reinforce", "Reinforce", "ReinforceOptions"),
        ("rloo", "Reinforce", "RLOOOptions"),
        ("reinforce_pp", "Reinforce", "ReinforcePPOptions"),
        ("reinforce_pp_baseline", "Reinforce", "ReinforcePPBaselineOptions"),
        ("opo", "Reinforce", "OPOOptions"),
        ("gpg", "Reinforce", "GPGOptions"),
        ("otb", "Reinforce", "OTBOptions"),
    ):
        registry.algorithm(
            name,
            target=f"bestiary_reinforce.algorithm:{target}",
            options=f"bestiary_reinforce.options:{options}",
        )
