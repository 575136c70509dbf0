"""The nearest right name for a message, and lists of names that stay readable."""

from collections.abc import Collection, Iterable

from bestiary.plugins.names import nearest


def did_you_mean(given: str, names: Iterable[str], prefix: str = "", suffix: str = "") -> str:
    """``"; did you mean 'x'?"``, or nothing when no name is near.

    Args:
        given: the wrong name.
        names: the right ones.
        prefix: put before the name that is found, so that it can be copied as it stands.
        suffix: put after it.
    """
    near = nearest(given, names)
    return f"; did you mean '{prefix}{near[0]}{suffix}'?" if near else ""


def listing(names: Collection[str], limit: int = 40) -> str:
    """Names in their order, cut after ``limit``."""
    shown = list(names)[:limit]
    more = len(names) - len(shown)
    return (", ".join(shown) or "(none)") + (f" and {more} more" if more else "")
