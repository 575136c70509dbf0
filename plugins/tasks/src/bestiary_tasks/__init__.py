"""Small tasks that need no data."""

from bestiary import Registry, hookimpl


@hookimpl
def bestiary_register(registry: Registry) -> None:
    """Register each task by name; it is imported when chosen."""
    registry.task(
        "addition",
        target="bestiary_tasks.addition:Addition",
        options="bestiary_tasks.options:AdditionOptions",
    )
