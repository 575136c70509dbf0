"""Systematic sampling: draws with exact expected counts."""

import numpy as np
from numpy.typing import NDArray


def systematic(chances: NDArray[np.float64], n: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Draw ``n`` indices; index i comes ⌊n·Pᵢ⌋ or ⌈n·Pᵢ⌉ times, and n·Pᵢ times on average.

    The chances are laid end to end in a random order and read at n points 1/n apart with one
    random offset (Madow 1949).

    Args:
        chances: [N] probabilities that add up to 1.
        n: how many.
        rng: decides order and offset.

    Returns:
        [n] indices in a random order.
    """
    order = rng.permutation(len(chances))
    ends = np.cumsum(chances[order])
    points = (rng.random() + np.arange(n)) / max(n, 1) * ends[-1]
    found = order[np.minimum(np.searchsorted(ends, points, side="right"), len(order) - 1)]
    return np.asarray(rng.permutation(found), dtype=np.int64)
