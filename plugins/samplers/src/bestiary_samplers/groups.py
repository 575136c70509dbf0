"""Rewards by group: what samplers judge by."""

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
