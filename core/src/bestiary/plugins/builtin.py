"""The plugin that the core itself is: its components register like those of any other.

It is always loaded and cannot be blocked.
"""

from bestiary.plugins.markers import hookimpl
from bestiary.plugins.registry import Registry


@hookimpl
def bestiary_register(registry: Registry) -> None:
    """Register the core's own components by name; each is imported when chosen."""
