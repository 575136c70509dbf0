"""Which rank gets which rows, and how each rank cuts its rows into micro-batches.

Pure and deterministic: the controller calls it once for the rows of an optimizer step, with global
counts. Light: plain Python.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

_BALANCED = 1.03
"""A largest rank of at most this many times the mean is not improved further."""


@dataclass(frozen=True, slots=True)
class RankPlan:
    """What one rank runs.

    Args:
        rows: numbers of the batch's rows to send to the rank, in the order of its micro-batches.
        micro: for each micro-batch, indices into ``rows``. All ranks have equally many.
        dummy: numbers of micro-batches that are run for the collectives only, with weight zero.
        own: how many of ``rows`` belong to the rank. It is ``len(rows)``, or 0 on a rank that got
            no row of its own: then ``rows`` is one row on loan, all its micro-batches are dummies
            and what the rank returns for it is dropped.
    """

    rows: tuple[int, ...]
    micro: tuple[tuple[int, ...], ...]
    dummy: frozenset[int]
    own: int


@dataclass(frozen=True, slots=True)
class _Cost:
    """Tokens and estimated work of rows; a prompt counts once in each set of rows."""

    prompts: Sequence[int]
    responses: Sequence[int]
    keys: Sequence[Hashable]
    shared: bool
    context_cost: float

    def fed(self, row: int) -> int:
        """Response tokens that are fed: all but the last."""
        return max(self.responses[row] - 1, 0)

    def tokens(self, rows: Sequence[int]) -> int:
        """Tokens that the engine holds for these rows."""
        if not self.shared:
            width = max((self.prompts[r] + self.responses[r] for r in rows), default=0)
            return width * len(rows)
        seen = {self.keys[r]: self.prompts[r] for r in rows}
        return sum(seen.values()) + sum(self.fed(r) for r in rows)

    def row_work(self, row: int) -> float:
        """Work of a row's response alone; a token costs 1 plus what it attends to."""
        n = self.fed(row)
        return n * (1.0 + self.context_cost * (self.prompts[row] + n / 2)) + 0.1

    def prompt_work(self, row: int) -> float:
        """Work of a row's prompt."""
        n = self.prompts[row]
        return n * (1.0 + self.context_cost * n / 2)

    def work(self, rows: Sequence[int]) -> float:
        """Work of a set of rows."""
        if not self.shared:
            return sum(self.prompt_work(r) + self.row_work(r) for r in rows)
        seen = {self.keys[r]: self.prompt_work(r) for r in rows}
        return sum(seen.values()) + sum(self.row_work(r) for r in rows)


def plan_microbatches(
    prompt_lens: Sequence[int],
    response_lens: Sequence[int],
    prompt_keys: Sequence[Hashable],
    *,
    world: int,
    tokens_per_micro: int,
    shared_prompts: bool = True,
    context_cost: float = 1.0 / 6144,
) -> list[RankPlan]:
    """Give every row to one rank and cut each rank's rows into equally many micro-batches.

    Ranks are balanced by estimated work; rows of one prompt stay together unless that would leave
    ranks idle. Every row comes exactly once, apart from dummies.

    Args:
        prompt_lens: [n] prompt tokens of each row.
        response_lens: [n] response tokens of each row.
        prompt_keys: [n] rows with equal keys have equal prompts.
        world: number of data-parallel ranks, at least 1.
        tokens_per_micro: token budget of a micro-batch; a larger row is alone in its own.
        shared_prompts: rows of a micro-batch with one key store their prompt once (the packed
            forward pass); False counts padded rows.
        context_cost: work of attending to one token, in units of a token's other work (about
            1 / (6 × hidden size)).

    Returns:
        One plan for each rank.

    Raises:
        ValueError: if there are no rows, or the columns have different lengths.
    """
    n = len(prompt_lens)
    if not n == len(response_lens) == len(prompt_keys):
        raise ValueError(
            f"plan_microbatches: {n} prompt lengths, {len(response_lens)} response lengths and "
            f"{len(prompt_keys)} prompt keys; one of each for every row is needed"
        )
    if n == 0 or world < 1 or tokens_per_micro < 1:
        raise ValueError(
            f"plan_microbatches: {n} rows, world={world}, tokens_per_micro={tokens_per_micro}: each "
            "must be at least 1"
        )
    prompts = [int(length) for length in prompt_lens]
    responses = [int(length) for length in response_lens]
    cost = _Cost(prompts, responses, prompt_keys, shared_prompts, context_cost)
    ranks = _balance(_split_large(_groups(prompt_keys), cost, world), cost, world)
    micros = [_cut(rows, cost, tokens_per_micro) for rows in ranks]
    most = max(len(m) for m in micros)
    shortest = min(range(n), key=lambda r: (prompts[r] + responses[r], r))
    return [_finish(m, most, cost, shortest) for m in micros]


def _groups(keys: Sequence[Hashable]) -> list[list[int]]:
    groups: dict[Hashable, list[int]] = {}
    for row, key in enumerate(keys):
        groups.setdefault(key, []).append(row)
    return list(groups.values())


def _split_large(groups: list[list[int]], cost: _Cost, world: int) -> list[list[int]]:
    """Cut groups that are more than a rank's fair share."""
    share = sum(cost.work(g) for g in groups) / world
    pieces: list[list[int]] = []
    for group in groups:
        count = min(len(group), max(1, round(cost.work(group) / share))) if share else 1
        if len(groups) < world:
            count = min(len(group), max(count, -(-world // len(groups))))
        parts: list[list[int]] = [[] for _ in range(count)]
        for row in sorted(group, key=lambda r: (-cost.row_work(r), r)):
            min(parts, key=lambda part: (sum(cost.row_work(r) for r in part), len(part))).append(row)
        pieces.extend(sorted(part) for part in parts)
    return pieces


def _balance(groups: list[list[int]], cost: _Cost, world: int) -> list[list[int]]:
    """Largest group first to the least loaded rank, then single rows from the most loaded one."""
    ranks: list[list[int]] = [[] for _ in range(world)]
    loads = [0.0] * world
    for group in sorted(groups, key=lambda g: (-cost.work(g), g[0])):
        lightest = loads.index(min(loads))
        ranks[lightest].extend(group)
        loads[lightest] = cost.work(ranks[lightest])
    for _ in range(sum(len(rows) for rows in ranks)):
        high, low = loads.index(max(loads)), loads.index(min(loads))
        if loads[high] <= _BALANCED * sum(loads) / world or len(ranks[high]) < 2:
            break
        moved = _best_move(ranks[high], ranks[low], loads[high], loads[low], cost)
        if moved is None:
            break
        ranks[high].remove(moved)
        ranks[low].append(moved)
        loads[high], loads[low] = cost.work(ranks[high]), cost.work(ranks[low])
    return [sorted(rows) for rows in ranks]


def _best_move(
    source: list[int], target: list[int], high: float, low: float, cost: _Cost
) -> int | None:
    """The row whose move lowers the larger of two loads most; None if none does."""
    there = {cost.keys[r] for r in target}
    best, best_row = high, None
    for row in source:
        work = cost.row_work(row)
        if not cost.shared or cost.keys[row] not in there:
            arrives = work + cost.prompt_work(row)
        else:
            arrives = work
        larger = max(high - work, low + arrives)
        if larger < best - 1e-9:
            best, best_row = larger, row
    return best_row


def _cut(rows: list[int], cost: _Cost, budget: int) -> list[list[int]]:
    """First-fit decreasing of whole prompts; a prompt with too many tokens is cut first."""
    pieces: list[list[int]] = []
    for group in _groups([cost.keys[r] for r in rows]):
        piece: list[int] = []
        for row in sorted((rows[i] for i in group), key=lambda r: (-cost.fed(r), r)):
            if piece and cost.tokens([*piece, row]) > budget:
                pieces.append(piece)
                piece = []
            piece.append(row)
        pieces.append(piece)
    bins: list[list[int]] = []
    for piece in sorted(pieces, key=lambda p: (-cost.tokens(p), p[0])):
        for bin_ in bins:
            if cost.tokens([*bin_, *piece]) <= budget:
                bin_.extend(piece)
                break
        else:
            bins.append(list(piece))
    return bins


def _finish(micros: list[list[int]], count: int, cost: _Cost, loan: int) -> RankPlan:
    """Bring a rank to ``count`` micro-batches: halve large ones, then repeat its shortest row."""
    if not micros:
        return RankPlan((loan,), ((0,),) * count, frozenset(range(count)), 0)
    micros = [list(m) for m in micros]
    while len(micros) < count:
        largest = max(micros, key=lambda m: (len(m) > 1, cost.tokens(m)))
        if len(largest) < 2:
            break
        half = len(largest) // 2
        place = micros.index(largest)
        micros[place : place + 1] = [largest[:half], largest[half:]]
    rows = tuple(row for micro in micros for row in micro)
    index, start = [], 0
    for micro in micros:
        index.append(tuple(range(start, start + len(micro))))
        start += len(micro)
    own = len(index)
    shortest = min(range(len(rows)), key=lambda i: (cost.prompts[rows[i]] + cost.responses[rows[i]]))
    index.extend([(shortest,)] * (count - own))
    return RankPlan(rows, tuple(index), frozenset(range(own, count)), len(rows))
