"""A judge: an algorithm whose rewards come from another language model's answers."""

from bestiary import Registry, hookimpl


@hookimpl
def bestiary_register(registry: Registry) -> None:
    """Register the algorithm."""
    registry.algorithm(
        "judged",
        target="bestiary_judge.algorithm:Judged",
        options="bestiary_judge.options:JudgedOptions",
    )
