"""Whether bundles of several pools fit the machines of a cluster together: a pure search."""

from collections.abc import Sequence
from dataclasses import dataclass

Size = tuple[int, ...]
"""Amounts of each resource, in whole grains."""

_STEPS = 20_000
"""Placings that are tried; a search that needs more is left undecided."""


@dataclass(frozen=True, slots=True)
class Crate:
    """``count`` equal bundles of one pool.

    Args:
        size: of one bundle.
        count: number of bundles.
        apart: each on a machine of its own; only bundles of the same crate count.
    """

    size: Size
    count: int
    apart: bool = False


def can_hold(machines: Sequence[Size], crates: Sequence[Crate]) -> bool | None:
    """Whether all bundles have a place at the same time.

    Bundles are placed one after another, the largest first, with a step back where one has no
    place. Equal machines and equal bundles are interchangeable, so each arrangement is tried once.

    Args:
        machines: what each machine has.
        crates: what is to be placed.

    Returns:
        True or False; None where the search was given up, which decides nothing.
    """
    order = sorted(crates, key=lambda crate: (crate.apart, crate.size), reverse=True)
    items = [(number, crate) for number, crate in enumerate(order) for _ in range(crate.count)]
    free = [list(machine) for machine in machines]
    placed: list[int] = []
    first, steps = 0, 0
    while len(placed) < len(items):
        steps += 1
        if steps > _STEPS:
            return None
        number, crate = items[len(placed)]
        again = bool(placed) and items[len(placed) - 1][0] == number
        lowest = placed[-1] + crate.apart if again else 0
        place = _next_place(free, crate.size, max(first, lowest))
        if place is not None:
            _take(free[place], crate.size, 1)
            placed.append(place)
            first = 0
            continue
        if not placed:
            return False
        last = placed.pop()
        size = items[len(placed)][1].size
        _take(free[last], size, -1)
        first = last + 1
    return True


def _next_place(free: list[list[int]], size: Size, first: int) -> int | None:
    """The first machine from ``first`` on with room, unless an equal one before it was tried."""
    tried: set[tuple[int, ...]] = set()
    for place in range(first, len(free)):
        have = tuple(free[place])
        if have not in tried and all(h >= s for h, s in zip(have, size, strict=True)):
            return place
        tried.add(have)
    return None


def _take(free: list[int], size: Size, sign: int) -> None:
    for resource, amount in enumerate(size):
        free[resource] -= sign * amount
