"""Options of the built-in schedules: light."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class SyncOptions:
    """Collect, then learn, then collect with the new weights: on-policy."""
