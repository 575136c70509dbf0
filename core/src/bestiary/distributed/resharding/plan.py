"""The plan of a reshard: pure intersection of the boxes of a source and a target layout.

Parameters of one shape and stage form a class; a class is intersected once, box by distinct box,
and a rank asks for the moves in which it takes part. So each of a thousand ranks plans in seconds.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

from bestiary.distributed.resharding.grouping import Place, Target
from bestiary.distributed.resharding.layout import (
    Box,
    Layout,
    Parameter,
    cells,
    contiguous,
    overlap,
    volume,
)
from bestiary.errors import PlacementError

Handling = Literal["in place", "direct", "buffer"]


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
class Piece:
    """A part of a target shard that lies inside or outside of every source box.

    Args:
        box: in indices of the whole parameter.
        place: of the shard.
        holders: the ranks that have it, in order.
    """

    box: Box
    place: Place
    holders: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """Every piece of a reshard.

    Args:
        parameters: of the model.
        source: who has what.
        target: who needs what.
        ranks: that take part.
        classes: the class of each parameter, and its number within the class.
        pieces: of each class.
    """

    parameters: tuple[Parameter, ...]
    source: Layout
    target: Target
    ranks: tuple[int, ...]
    classes: tuple[tuple[int, int], ...]
    pieces: tuple[tuple[Piece, ...], ...]
    _members: dict[Place, dict[int, int]] = field(repr=False)
    _replicas: dict[int, int] = field(repr=False)

    def moves(self, number: int, rank: int | None = None) -> Iterator[Move]:
        """The moves of a parameter, those that stay among them.

        Args:
            number: of the parameter.
            rank: only those in which it takes part.
        """
        kind, ordinal = self.classes[number]
        own = None if rank is None else self.target.place.get(rank)
        for index, piece in enumerate(self.pieces[kind]):
            if rank is None or rank in piece.holders:
                receivers = [*self._members[piece.place]]
            elif own == piece.place:
                receivers = [rank]
            else:
                continue
            for receiver in receivers:
                sender = self._sender(piece, receiver, index + ordinal)
                if rank is None or rank in (sender, receiver):
                    yield Move(number, piece.box, sender, receiver)

    def _sender(self, piece: Piece, receiver: int, turn: int) -> int:
        """Itself, else one of the same replica, else any: by turns, so that they share the work."""
        holders = piece.holders
        if len(holders) == 1 or receiver in holders:
            return receiver if receiver in holders else holders[0]
        mine = self._replicas.get(receiver)
        near = [rank for rank in holders if self._replicas[rank] == mine] or holders
        return near[(self._members[piece.place][receiver] + turn) % len(near)]

    def received(self) -> dict[int, int]:
        """Elements that each rank gets from others: its target less what it has."""
        return self._total(receivers=True)

    def sent(self) -> dict[int, int]:
        """Elements that each rank sends."""
        return self._total(receivers=False)

    def _total(self, *, receivers: bool) -> dict[int, int]:
        out = dict.fromkeys(self.ranks, 0)
        for number in range(len(self.parameters)):
            for move in self.moves(number):
                if move.sender != move.receiver:
                    out[move.receiver if receivers else move.sender] += move.numel
        return out

    def handling(self, rank: int) -> dict[str, Handling]:
        """How each of a rank's target shards comes about, where no dtype changes.

        ``in place``: a contiguous part of what it has, no copy. ``direct``: every piece is
        contiguous in the target and goes straight there. ``buffer``: some piece goes through
        one.
        """
        out: dict[str, Handling] = {}
        for number, parameter in enumerate(self.parameters):
            have, want = self.source.box(parameter, rank), self.target.box(parameter, rank)
            if want is None:
                continue
            if have is not None and overlap(have, want) == want and contiguous(want, have):
                out[parameter.name] = "in place"
                continue
            came = [m for m in self.moves(number, rank) if m.receiver == rank != m.sender]
            direct = all(contiguous(move.box, want) for move in came)
            out[parameter.name] = "direct" if direct else "buffer"
        return out

    def needs(self, small: int = 0) -> list[int]:
        """Elements of memory that each parameter can take on any rank while it is on its way.

        Its target, what comes in through a buffer and what goes out through one.

        Args:
            small: pieces of fewer elements are copied for each receiver.
        """
        by_class: dict[int, int] = {}
        for (kind, _), parameter in zip(self.classes, self.parameters, strict=True):
            if kind in by_class:
                continue
            out = dict.fromkeys(self.ranks, 0)
            for piece in self.pieces[kind]:
                receivers = sum(r not in piece.holders for r in self._members[piece.place])
                size = volume(piece.box)
                for holder in piece.holders:
                    out[holder] += size * (receivers if size < small else min(receivers, 1))
            most = max((volume(self.target.shard(parameter, p)) for p in self._members), default=0)
            moving = any(out.values())
            by_class[kind] = most + (most + max(out.values()) if moving else 0)
        return [by_class[kind] for kind, _ in self.classes]

    def buckets(self, limit: int, small: int = 0) -> list[range]:
        """Runs of parameters that need up to ``limit`` elements, at least one parameter each."""
        made, start, size = [], 0, 0
        for number, need in enumerate(self.needs(small)):
            if number > start and size + need > limit:
                made.append(range(start, number))
                start, size = number, 0
            size += need
        if self.parameters:
            made.append(range(start, len(self.parameters)))
        return made


def plan_reshard(parameters: Sequence[Parameter], source: Layout, target: Target) -> Plan:
    """Which part of whose box goes where.

    Every target box is cut along the edges of the source boxes. A piece that the rank has stays; of
    several that have it, the sender is one of the same replica where there is one, and they take
    turns from parameter to parameter of a class.

    Raises:
        PlacementError: if nobody has a piece.
    """
    numbers: dict[tuple[object, ...], int] = {}
    sizes: list[int] = []
    classes: list[tuple[int, int]] = []
    pieces: list[tuple[Piece, ...]] = []
    for p in parameters:
        key = class_of(p, source, target.layout)
        if key not in numbers:
            numbers[key] = len(pieces)
            pieces.append(tuple(_pieces(p, source, target)))
            sizes.append(0)
        kind = numbers[key]
        classes.append((kind, sizes[kind]))
        sizes[kind] += 1
    members = {
        place: {rank: i for i, rank in enumerate(ranks)}
        for place, ranks in target.members().items()
    }
    replicas = {r: source.mesh.coordinates(r - source.offset)["dp"] for r in source.ranks}
    return Plan(
        tuple(parameters), source, target, tuple(sorted({*source.ranks, *target.place})),
        tuple(classes), tuple(pieces), members, replicas,
    )  # fmt: skip


def class_of(p: Parameter, source: Layout, target: Layout) -> tuple[object, ...]:
    """What parameters have in common whose boxes are the same on every rank."""
    return (p.shape, p.tp_dim, p.blocks, p.queries, source.stages(p), target.stages(p))


def _pieces(parameter: Parameter, source: Layout, target: Target) -> Iterator[Piece]:
    held: dict[Box, list[int]] = {}
    for rank in source.ranks:
        box = source.box(parameter, rank)
        if box is not None:
            held.setdefault(box, []).append(rank)
    for place in sorted(target.members()):
        want = target.shard(parameter, place)
        if want is None:
            continue
        near = {box: shared for box in held if (shared := overlap(box, want)) is not None}
        if sum(map(volume, near.values())) == volume(want) and _disjoint(list(near.values())):
            for box, shared in near.items():
                yield Piece(shared, place, tuple(held[box]))
            continue
        for cell in cells(want, list(near.values())):
            found = [r for box, part in near.items() if overlap(part, cell) == cell
                     for r in held[box]]  # fmt: skip
            if not found:
                raise PlacementError(f"no rank of the source has {cell} of {parameter.name}")
            yield Piece(cell, place, tuple(sorted(found)))


def _disjoint(boxes: Sequence[Box], dim: int = 0) -> bool:
    """Whether boxes lie in a grid without sharing anything; where that is unsure, it is False."""
    groups: dict[tuple[int, int], list[Box]] = {}
    if len(boxes) < 2:
        return True
    if dim == len(boxes[0]):
        return False
    for box in boxes:
        groups.setdefault(box[dim], []).append(box)
    return all(a[1] <= b[0] for a, b in pairwise(sorted(groups))) and all(
        _disjoint(group, dim + 1) for group in groups.values()
    )
