"""Advantage estimators that many algorithms share; each is a component of its own."""

from bestiary import Registry, hookimpl


@hookimpl
def bestiary_register(registry: Registry) -> None:
    """Register each estimator by name; it is imported when chosen."""
    registry.advantage(
        "group",
        target="bestiary_estimators.group:GroupRelative",
        options="bestiary_estimators.options:GroupOptions",
    )
