"""Rejection sampling (RAFT), a member of the bestiary zoo."""

from bestiary import Registry, hookimpl


@hookimpl
def bestiary_register(registry: Registry) -> None:
    """Register the components by name; each is imported when chosen."""
    registry.algorithm(
        "raft",
        target="bestiary_raft.algorithm:RAFT",
        options="bestiary_raft.options:RAFTOptions",
    )
