"""The micro-batch plan: which rows go to which rank, in which micro-batches.

Pure numpy on the controller, from lengths alone, so every rank runs the same number of
micro-batches without asking the others.
"""

import sys
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bestiary.batch.partition import balanced

Rows = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RankPlan:
    """What one rank runs.

    Args:
        rows: row numbers of the batch that travel to the rank.
        padding: True for rows that are there only because the rank has none of its own; they
            have weight zero.
        micro: positions in ``rows`` for each micro-batch.
        dummy: numbers of the micro-batches that repeat rows with weight zero, for the
            collectives only.
    """

    rows: Rows
    padding: NDArray[np.bool_]
    micro: tuple[tuple[int, ...], ...]
    dummy: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Plan:
    """One entry for each rank; all have the same number of micro-batches."""

    ranks: tuple[RankPlan, ...]


@dataclass(slots=True)
class _Unit:
    """Rows of one prompt that stay together, so that the prompt is computed once for them."""

    prompt_len: int
    rows: list[int]
    lens: list[int]

    @property
    def tokens(self) -> int:
        return self.prompt_len + sum(self.lens)

    def cost(self, quadratic: float) -> float:
        """Tokens, and what attention adds: each response looks at its prompt and itself."""
        pairs = self.prompt_len**2 + sum(n * (n + 2 * self.prompt_len) for n in self.lens)
        return self.tokens + quadratic * pairs

    def halves(self) -> tuple["_Unit", "_Unit"]:
        middle = len(self.rows) // 2
        return (
            _Unit(self.prompt_len, self.rows[:middle], self.lens[:middle]),
            _Unit(self.prompt_len, self.rows[middle:], self.lens[middle:]),
        )


def plan_microbatches(
    prompt_lens: Rows,
    response_lens: Rows,
    prompts: Rows,
    *,
    world: int,
    tokens_per_micro: int,
    whole: bool = False,
    quadratic: float = 0.0,
) -> Plan:
    """Balance rows over ranks and cut each rank's rows into micro-batches.

    Rows with the same prompt stay together where they fit. Every row comes exactly once; a row
    that is longer than the budget has a micro-batch of its own. The result depends on the
    arguments alone.

    Args:
        prompt_lens: [B] tokens of each row's prompt.
        response_lens: [B] tokens of each row's response.
        prompts: [B] equal numbers for rows with the same prompt.
        world: number of ranks.
        tokens_per_micro: budget; a prompt counts once for its rows in a micro-batch.
        whole: never split the rows of a prompt; where they exceed the budget they have a
            micro-batch of their own.
        quadratic: cost of attention: a row of T tokens costs T + quadratic·T². For a decoder of
            width h it is about 1/(12·h): 24·h² operations a token in its linear layers against
            2·h·T in attention.

    Returns:
        The plan; ranks differ by little in cost and not at all in the number of micro-batches.

    Raises:
        ValueError: for an empty batch or a budget below 1.
    """
    if len(prompt_lens) == 0:
        raise ValueError("an update or forward pass needs at least one row, got an empty batch")
    if tokens_per_micro < 1 or world < 1:
        raise ValueError(f"tokens_per_micro={tokens_per_micro} and world={world}: must be above 0")
    budget = sys.maxsize if whole else tokens_per_micro
    units = _units(prompt_lens, response_lens, prompts, budget)
    bins = [_pack(mine, tokens_per_micro) for mine in _balance(units, world, whole, quadratic)]
    count = max(1, max(len(b) for b in bins))
    shortest = int(np.argmin(np.asarray(prompt_lens) + np.asarray(response_lens)))
    return Plan(tuple(_rank(_stretch(b, count, whole), count, shortest) for b in bins))


def _units(prompt_lens: Rows, response_lens: Rows, prompts: Rows, budget: int) -> list[_Unit]:
    by_prompt: dict[int, _Unit] = {}
    for i, prompt in enumerate(np.asarray(prompts).tolist()):
        unit = by_prompt.setdefault(prompt, _Unit(int(prompt_lens[i]), [], []))
        unit.rows.append(i)
        unit.lens.append(int(response_lens[i]))
    waiting, units = list(by_prompt.values())[::-1], []
    while waiting:
        unit = waiting.pop()
        if unit.tokens > budget and len(unit.rows) > 1:
            first, second = unit.halves()
            waiting += [second, first]
        else:
            units.append(unit)
    return units


def _balance(units: list[_Unit], world: int, whole: bool, quadratic: float) -> list[list[_Unit]]:
    """Units to ranks of about equal cost, the longest unit of each rank first."""
    ordered = sorted(units, key=lambda u: (-u.tokens, u.rows[0]))
    while not whole and len(ordered) < world and len(ordered[0].rows) > 1:
        ordered = sorted([*ordered[0].halves(), *ordered[1:]], key=lambda u: (-u.tokens, u.rows[0]))
    parts = balanced([unit.cost(quadratic) for unit in ordered], world)
    return [[ordered[i] for i in part] for part in parts]


def _pack(units: list[_Unit], budget: int) -> list[list[_Unit]]:
    """Units into as few micro-batches as first-fit finds, longest first."""
    bins: list[list[_Unit]] = []
    room: list[int] = []
    for unit in units:
        for i, free in enumerate(room):
            if unit.tokens <= free:
                bins[i].append(unit)
                room[i] -= unit.tokens
                break
        else:
            bins.append([unit])
            room.append(budget - unit.tokens)
    return bins


def _stretch(bins: list[list[_Unit]], count: int, whole: bool) -> list[list[_Unit]]:
    """Split micro-batches until there are ``count``, as far as there are rows to split."""
    bins = list(bins)
    while 0 < len(bins) < count:
        rows = [sum(len(u.rows) for u in b) for b in bins]
        if whole:
            rows = [n if len(b) > 1 else 0 for n, b in zip(rows, bins, strict=True)]
        largest = rows.index(max(rows))
        if rows[largest] < 2:
            break
        chosen = bins.pop(largest)
        if len(chosen) > 1:
            bins += [chosen[::2], chosen[1::2]]
        else:
            bins += [[half] for half in chosen[0].halves()]
    return bins


def _rank(bins: list[list[_Unit]], count: int, any_row: int) -> RankPlan:
    if not bins:
        return RankPlan(
            np.array([any_row], dtype=np.int64),
            np.array([True]),
            ((0,),) * count,
            frozenset(range(count)),
        )
    rows: list[int] = []
    micro: list[tuple[int, ...]] = []
    for units in bins:
        start = len(rows)
        for unit in units:
            rows += unit.rows
        micro.append(tuple(range(start, len(rows))))
    dummy = frozenset(range(len(micro), count))
    micro += [(0,)] * len(dummy)
    return RankPlan(
        np.array(rows, dtype=np.int64), np.zeros(len(rows), dtype=bool), tuple(micro), dummy
    )
