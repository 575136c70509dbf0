"""Group relative policy optimisation, a member of the bestiary zoo."""

from bestiary import Registry, hookimpl


@hookimpl
def bestiary_register(registry: Registry) -> None:
    """Register the algorithm by name; it is imported when chosen."""
    registry.algorithm(
        "grpo",
        target="bestiary_grpo.algorithm:GRPO",
        options="bestiary_grpo.options:GRPOOptions",
    )
