"""Rewards by group: what samplers judge by."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bestiary.batch import Batch


def counted_rows(groups: Batch) -> NDArray[np.bool_]:
    """[B] True on rows that count: valid, and trained on (baseline rows do not count)."""
    counted = np.ones(len(groups), dtype=bool)
    for name in ("valid", "trainable"):
        if name in groups:
            counted &= groups[name].astype(bool)
    return counted


def rewards_by_group(groups: Batch) -> list[NDArray[np.float64]]:
    """The rewards of the counted rows of each group, in order of first appearance."""
    index, counted = groups.group_index(), counted_rows(groups)
    rewards = groups["reward"].astype(np.float64)
    return [rewards[(index == g) & counted] for g in range(int(index.max(initial=-1)) + 1)]


def response_tokens(groups: Batch, rows: NDArray[np.bool_]) -> int:
    """Response tokens of the chosen rows: what they cost to generate."""
    lengths = groups.optional("response_len")
    return 0 if lengths is None else int(lengths[rows].sum())


class JudgedRewards:
    """The mean reward of all counted rows of a step, before any of them is left out.

    ``reward/mean`` is that of the rows that are trained on, so it cannot be compared between
    samplers that choose by reward; this one can.
    """

    def __init__(self) -> None:
        self._total = 0.0
        self._count = 0
        self.mean = float("nan")
        """Of the last complete step."""

    def add(self, groups: Batch) -> None:
        """Count the rows of one round."""
        rewards = groups["reward"].astype(np.float64)[counted_rows(groups)]
        self._total += float(rewards.sum())
        self._count += len(rewards)

    def close(self) -> None:
        """The step is complete."""
        self.mean = self._total / self._count if self._count else float("nan")
        self._total, self._count = 0.0, 0

    def state_dict(self) -> dict[str, Any]:
        """What was counted of a step that is not complete."""
        return {"total": self._total, "count": self._count}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state."""
        self._total, self._count = float(state["total"]), int(state["count"])
