"""Sharing out items of different cost so that no one has much more than another."""

import heapq
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def balanced(costs: Sequence[float] | NDArray[np.float64], parts: int) -> list[list[int]]:
    """Items to ``parts`` parts of about equal total cost.

    The better of Karmarkar and Karp's largest differencing (1982; for several parts as in Michiels
    et al. 2003) and longest-processing-time-first (Graham 1969), so never worse than the latter,
    whose largest part is at most 4/3 of the best possible. Depends on the arguments alone.

    Args:
        costs: [n] of each item, at least 0.
        parts: number of parts, at least 1.

    Returns:
        The item numbers of each part in rising order, the heaviest part first; no part is empty
        while there are items enough (of cost above 0).

    Raises:
        ValueError: for fewer than one part or a negative cost.
    """
    weights = np.asarray(costs, dtype=np.float64)
    if parts < 1:
        raise ValueError(f"parts={parts}: at least 1 is wanted")
    if len(weights) and not float(weights.min()) >= 0.0:
        raise ValueError(f"costs must be at least 0, the smallest is {weights.min()}")
    if parts == 1 or len(weights) == 0:
        return [list(range(len(weights))), *([] for _ in range(parts - 1))]
    found = [differencing(weights, parts), longest_first(weights, parts)]
    best = min(found, key=lambda f: max(float(weights[part].sum()) for part in f if part))
    loads = [float(weights[part].sum()) if part else 0.0 for part in best]
    order = sorted(range(parts), key=lambda i: (-loads[i], best[i]))
    return [best[i] for i in order]


def longest_first(weights: NDArray[np.float64], parts: int) -> list[list[int]]:
    """The heaviest item first, each to the lightest part so far."""
    out: list[list[int]] = [[] for _ in range(parts)]
    heap = [(0.0, i) for i in range(parts)]
    for item in np.argsort(-weights, kind="stable").tolist():
        load, part = heapq.heappop(heap)
        out[part].append(item)
        heapq.heappush(heap, (load + float(weights[item]), part))
    return [sorted(part) for part in out]


def differencing(weights: NDArray[np.float64], parts: int) -> list[list[int]]:
    """Again and again join the two partial partitions that are the least even.

    The heaviest part of one goes with the lightest of the other. Only loads are kept while
    joining; who is where is read from the tree of joins at the end.
    """
    n = len(weights)
    loads = []
    for weight in weights:
        load = np.zeros(parts)
        load[0] = weight
        loads.append(load)
    # Loads are in falling order, so the spread of a partition is its first minus its last.
    heap = [(-float(load[0] - load[-1]), number) for number, load in enumerate(loads)]
    heapq.heapify(heap)
    joins: list[tuple[int, int, NDArray[np.int64]]] = []
    while len(heap) > 1:
        _, first = heapq.heappop(heap)
        _, second = heapq.heappop(heap)
        total = loads[first] + loads[second][::-1]
        order = np.argsort(-total, kind="stable")
        joins.append((first, second, order))
        loads.append(total[order])
        new = len(loads) - 1
        heapq.heappush(heap, (-float(loads[new][0] - loads[new][-1]), new))
    return _read(joins, n, parts)


def _read(joins: list[tuple[int, int, NDArray[np.int64]]], n: int, parts: int) -> list[list[int]]:
    """The items of each part: every join says where the parts of both sides went."""
    out: list[list[int]] = [[] for _ in range(parts)]
    where: dict[int, NDArray[np.int64]] = {n + len(joins) - 1: np.arange(parts)}
    for number in range(len(joins) - 1, -1, -1):
        first, second, order = joins[number]
        final = where.pop(n + number)
        place = np.empty(parts, dtype=np.int64)
        place[order] = final  # part i of ``first`` is at position order⁻¹(i) of the join
        where[first], where[second] = place, place[::-1]
    for item in range(n):
        out[int(where[item][0])].append(item)
    return [sorted(part) for part in out]
