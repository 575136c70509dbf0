"""Supervised fine-tuning, a member of the bestiary zoo."""

from bestiary import Registry, hookimpl


@hookimpl
def bestiary_register(registry: Registry) -> None:
    """Register the algorithm by name; it is imported when chosen."""
    registry.algorithm(
        "sft",
        target="bestiary_sft.algorithm:SFT",
        options="bestiary_sft.options:SFTOptions",
    )
