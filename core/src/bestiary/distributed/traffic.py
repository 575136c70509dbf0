"""How many bytes pass through the controller's process."""

import threading
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

INLINE_BYTES = 100 * 1024
"""Ray sends results below this size through the caller instead of the object store."""

_lock = threading.Lock()
_total = 0


def count_driver_bytes(size_bytes: int) -> None:
    """Add to the counter."""
    global _total
    with _lock:
        _total += size_bytes


def driver_bytes() -> int:
    """Bytes that this process has sent to or received from workers since it started.

    Blocks that it fetched, tables and reports, small blocks that Ray inlines, and arguments by
    value. Blocks that go from worker to worker as references do not count.
    """
    return _total


def estimate_bytes(value: Any) -> int:  # noqa: ANN401 - whatever is sent
    """About how many bytes a value takes when it travels; references count as nothing."""
    if isinstance(value, str | bytes | bytearray):
        return len(value)
    if isinstance(value, int | float | complex | None):
        return 8
    if getattr(value, "is_reference", False):
        return 64
    if hasattr(value, "nbytes") and hasattr(value, "dtype"):
        if str(value.dtype) == "object":
            return sum(estimate_bytes(item) for item in value.flat)
        return int(value.nbytes)
    if isinstance(value, Mapping):
        return sum(estimate_bytes(key) + estimate_bytes(item) for key, item in value.items())
    if isinstance(value, list | tuple | set | frozenset):
        return sum(estimate_bytes(item) for item in value)
    if is_dataclass(value):
        return sum(estimate_bytes(getattr(value, field.name)) for field in fields(value))
    return 64
