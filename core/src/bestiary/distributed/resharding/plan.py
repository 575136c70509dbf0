"""The plan of a reshard: pure intersection of the boxes of a source and a target layout."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bestiary.distributed.resharding.layout import (
    Box,
    Layout,
    Parameter,
    cells,
    overlap,
    volume,
)
from bestiary.errors import PlacementError


@dataclass(frozen=True, slots=True)
class Target:
    """Which shard of the target layout each rank takes.

    Args:
        layout: tensor and pipeline parallel degrees of generation.
        place: for each rank of the group that generates, its place (pp, tp).
    """

    layout: Layout
    place: Mapping[int, tuple[int, int]]

    def box(self, parameter: Parameter, rank: int) -> Box | None:
        """What the rank must have of a parameter."""
        if rank not in self.place:
            return None
        pp, tp = self.place[rank]
        return None if pp != self.layout.stage(parameter) else self.layout.shard(parameter, tp)

    def tensor_groups(self) -> list[list[int]]:
        """The ranks that generate together: one of each shard."""
        by_place: dict[tuple[int, int], list[int]] = {}
        for rank in sorted(self.place):
            by_place.setdefault(self.place[rank], []).append(rank)
        columns = [by_place[key] for key in sorted(by_place)]
        return [list(group) for group in zip(*columns, strict=True)]

    def micro_groups(self, source: Layout) -> list[list[int]]:
        """Ranks of one replica of the source that take the same shard: they gather it together."""
        found: dict[tuple[int, tuple[int, int]], list[int]] = {}
        for rank in sorted(self.place):
            replica = source.mesh.coordinates(rank - source.offset)["dp"]
            found.setdefault((replica, self.place[rank]), []).append(rank)
        return sorted(found.values())


def choose_target(source: Layout, layout: Layout, parameters: Sequence[Parameter]) -> Target:
    """Give each rank of the source's group a shard of the target, so that it keeps what it has.

    Ranks are sorted by what they hold and cut into equal runs, one for each shard (micro data
    parallelism, arXiv:2409.19256, section 5.3). Of the two orders, tensor before pipeline or after
    it, the one that keeps more bytes is taken.

    Raises:
        PlacementError: if the ranks cannot be shared out evenly.
    """
    world, shards = source.mesh.size, layout.mesh.pp * layout.mesh.tp
    if world % shards:
        raise PlacementError(
            f"generation with {layout.mesh} has {shards} shards, which do not divide the {world} "
            "ranks of training",
            hint="choose degrees whose product divides the number of ranks",
        )
    best: Target | None = None
    kept = -1
    for first, second in (("pp", "tp"), ("tp", "pp")):
        order = sorted(
            source.ranks,
            key=lambda r: _order(source, r, first, second),
        )
        outer, inner = getattr(layout.mesh, first), getattr(layout.mesh, second)
        place = {}
        for position, rank in enumerate(order):
            shard = position * shards // world
            a, b = divmod(shard, inner)
            place[rank] = (a, b) if first == "pp" else (b, a)
        assert outer * inner == shards  # noqa: S101 - by construction
        target = Target(layout, place)
        total = sum(
            p.copies * volume(overlap(source.box(p, r), target.box(p, r)))
            for r in source.ranks
            for p in parameters
        )
        if total > kept:
            best, kept = target, total
    assert best is not None  # noqa: S101 - two were tried
    return best


def _order(source: Layout, rank: int, first: str, second: str) -> tuple[int, int, int, int]:
    at = source.mesh.coordinates(rank - source.offset)
    return at[first], at[second], at["fsdp"], at["dp"]


def separate_target(layout: Layout) -> Target:
    """A target on ranks of its own: the place of each is that of its mesh."""
    place = {}
    for rank in layout.ranks:
        at = layout.mesh.coordinates(rank - layout.offset)
        place[rank] = (at["pp"], at["tp"])
    return Target(layout, place)


@dataclass(frozen=True, slots=True)
class Move:
    """One piece of one parameter on its way.

    Args:
        parameter: its number.
        box: in indices of the whole parameter.
        sender: who has it.
        receiver: who needs it; the sender itself for what stays.
    """

    parameter: int
    box: Box
    sender: int
    receiver: int

    @property
    def numel(self) -> int:
        """Elements of the piece."""
        return volume(self.box)


@dataclass(frozen=True, slots=True)
class Plan:
    """Every piece of a reshard, parameter by parameter.

    Args:
        parameters: of the model.
        source: who has what.
        target: who needs what.
        moves: pieces in the order of the parameters; those that stay are among them.
    """

    parameters: tuple[Parameter, ...]
    source: Layout
    target: Target
    moves: tuple[tuple[Move, ...], ...]
    ranks: tuple[int, ...] = field(default=())

    def received(self) -> dict[int, int]:
        """Elements that each rank gets from others: its target less what it has."""
        out = dict.fromkeys(self.ranks, 0)
        for moves in self.moves:
            for move in moves:
                if move.sender != move.receiver:
                    out[move.receiver] += move.numel
        return out

    def sent(self) -> dict[int, int]:
        """Elements that each rank sends."""
        out = dict.fromkeys(self.ranks, 0)
        for moves in self.moves:
            for move in moves:
                if move.sender != move.receiver:
                    out[move.sender] += move.numel
        return out

    def in_place(self, rank: int) -> list[str]:
        """Parameters whose target is a contiguous part of what the rank has: no copy is needed."""
        found = []
        for parameter in self.parameters:
            have, want = self.source.box(parameter, rank), self.target.box(parameter, rank)
            if want is None or have is None or overlap(have, want) != want:
                continue
            if have[1:] == want[1:]:
                found.append(parameter.name)
        return found

    def buckets(self, limit: int) -> list[range]:
        """Runs of parameters of up to ``limit`` target elements, at least one parameter each."""
        made, start, size = [], 0, 0
        for number, parameter in enumerate(self.parameters):
            need = max(
                (volume(self.target.box(parameter, r)) for r in self.target.place), default=0
            )
            if number > start and size + need > limit:
                made.append(range(start, number))
                start, size = number, 0
            size += need
        made.append(range(start, len(self.parameters)))
        return made


def plan_reshard(parameters: Sequence[Parameter], source: Layout, target: Target) -> Plan:
    """Which part of whose box goes where.

    Every target box is cut along the edges of the source boxes. A piece that the rank has stays; of
    several that have it, the sender is one of the same replica where there is one, then the one
    that has sent least, so replicas share the work.

    Raises:
        PlacementError: if nobody has a piece.
    """
    ranks = tuple(sorted({*source.ranks, *target.place}))
    load = dict.fromkeys(ranks, 0)
    every: list[tuple[Move, ...]] = []
    for number, parameter in enumerate(parameters):
        held = {r: box for r in source.ranks if (box := source.box(parameter, r)) is not None}
        moves: list[Move] = []
        for rank in sorted(target.place):
            want = target.box(parameter, rank)
            if want is None:
                continue
            own = overlap(held.get(rank), want)
            near = {r: b for r, b in held.items() if overlap(b, want) is not None}
            for cell in cells(want, [*{*near.values()}, *([own] if own else [])]):
                sender = _sender(parameter, cell, rank, near, source, load)
                if sender != rank:
                    load[sender] += volume(cell)
                moves.append(Move(number, cell, sender, rank))
        every.append(tuple(moves))
    return Plan(tuple(parameters), source, target, tuple(every), ranks)


def _sender(
    parameter: Parameter,
    cell: Box,
    rank: int,
    near: Mapping[int, Box],
    source: Layout,
    load: Mapping[int, int],
) -> int:
    holders = [r for r, box in near.items() if overlap(box, cell) == cell]
    if not holders:
        raise PlacementError(f"no rank of the source has {cell} of {parameter.name}")
    if rank in holders:
        return rank
    replica = _replica(source, rank)
    return min(holders, key=lambda r: (_replica(source, r) != replica, load[r], r))


def _replica(source: Layout, rank: int) -> int:
    if rank not in source.ranks:
        return -1
    return source.mesh.coordinates(rank - source.offset)["dp"]
