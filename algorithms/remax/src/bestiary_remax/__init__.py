"""ReMax, a member of the bestiary zoo."""

from bestiary import Registry, hookimpl


@hookimpl
def bestiary_register(registry: Registry) -> None:
    """Register the algorithms by name; each is imported when chosen."""
    for name, target, options in (("remax", "ReMax", "ReMaxOptions"),):
        registry.algorithm(
            name,
            target=f"bestiary_remax.algorithm:{target}",
            options=f"bestiary_remax.options:{options}",
        )
