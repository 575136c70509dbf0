"""Prompts over the length limit: five policies, each of them counted."""

from typing import Literal, get_args

from bestiary.errors import DataError

Overlong = Literal["error", "drop", "left", "right", "middle"]
POLICIES: tuple[str, ...] = get_args(Overlong)


def check_policy(policy: str) -> None:
    """Refuse an unknown policy."""
    if policy not in POLICIES:
        raise DataError(
            f"overlong={policy!r} is unknown", hint=f"choose from {', '.join(POLICIES)}"
        )


def cut(ids: list[int], limit: int, policy: Overlong) -> list[int]:
    """Shorten ids to ``limit`` tokens.

    Args:
        ids: longer than ``limit``.
        limit: at least 1.
        policy: ``left`` drops tokens at the left end, ``right`` at the right end, ``middle``
            keeps both ends (of an odd limit, the left one gets the odd token).
    """
    if policy == "left":
        return ids[-limit:]
    if policy == "right":
        return ids[:limit]
    head = limit - limit // 2
    return ids[:head] + ids[len(ids) - (limit - head) :]


def fit(ids: list[int], limit: int, policy: Overlong, row: int, uid: str) -> list[int] | None:
    """The ids under the limit, or None for a row to drop.

    Args:
        ids: of one prompt.
        limit: tokens at most; 0 is no limit.
        policy: what to do with a longer one.
        row: number of the prompt, for the message.
        uid: of the prompt, for the message.

    Raises:
        DataError: naming row, length and limit, under the policy ``error``.
    """
    if limit <= 0 or len(ids) <= limit:
        return ids
    if policy == "error":
        raise DataError(
            f"prompt at row {row} (uid {uid}) has {len(ids)} tokens, the limit is {limit}",
            hint="raise the limit, or choose overlong=drop, left, right or middle",
        )
    return None if policy == "drop" else cut(ids, limit, policy)
