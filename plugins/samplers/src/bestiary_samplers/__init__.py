"""Samplers of prompts; each is a component of its own."""

from bestiary import Registry, hookimpl


@hookimpl
def bestiary_register(registry: Registry) -> None:
    """Register each sampler by name; it is imported when chosen."""
    for name, target in (
        ("uniform", "Uniform"),
        ("dynamic", "Dynamic"),
        ("curriculum", "Curriculum"),
        ("prioritised", "Prioritised"),
        ("oversample", "Oversample"),
        ("best_of_n", "BestOfN"),
    ):
        registry.sampler(
            name,
            target=f"bestiary_samplers.{name}:{target}",
            options=f"bestiary_samplers.options:{target}Options",
        )
