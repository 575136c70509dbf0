"""VinePPO: an algorithm that rolls out again from inside of its responses."""

from bestiary import Registry, hookimpl


@hookimpl
def bestiary_register(registry: Registry) -> None:
    """Register the algorithm."""
    registry.algorithm(
        "vine",
        target="bestiary_vine.algorithm:Vine",
        options="bestiary_vine.options:VineOptions",
    )
