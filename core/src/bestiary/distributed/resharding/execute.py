"""A plan carried out over a process group, bucket by bucket."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from bestiary.distributed.resharding.buffers import Buffers, Traffic, Transfer
from bestiary.distributed.resharding.layout import Box, contiguous, volume
from bestiary.distributed.resharding.plan import Move, Plan
from bestiary.errors import EngineError

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

BUCKET_BYTES = 64 << 20
"""Memory for what is on its way."""

SMALL_BYTES = 64 << 10
"""Smaller pieces for one peer travel together."""


class Resharder:
    """Brings this rank's target shards, one bucket after another.

    The next bucket is on its way while the caller works with the current one. Pieces are cast by
    the sender, so the wire carries the target's dtype. A contiguous piece leaves from where it lies
    and a piece that is contiguous in the target arrives there; only the others are copied.

    Each iteration brings the whole target; all ranks of the plan must run through it. The source
    is never written.

    Args:
        plan: the same on every rank.
        rank: of this process in the group, as the plan numbers it.
        source: this rank's shards by parameter name, each of the shape of its box.
        dtype: of the target.
        into: tensors of the target's shapes to be filled, by parameter name. Without it a bucket's
            tensors are views of the source or of a buffer that the next bucket but one uses again:
            copy what shall last.
        device: where buffers are made.
        bucket_bytes: the most memory that buffers take, two buckets in flight together; a
            parameter that needs more travels alone.
        group: None is the default group.

    Raises:
        EngineError: for a tensor that does not have the shape of its box, and integers that would
            have to be cast.
    """

    def __init__(
        self,
        plan: Plan,
        rank: int,
        source: Mapping[str, Tensor],
        *,
        dtype: torch.dtype,
        into: Mapping[str, Tensor] | None = None,
        device: str | torch.device = "cpu",
        bucket_bytes: int = BUCKET_BYTES,
        group: "ProcessGroup | None" = None,
    ) -> None:
        self.plan, self.rank, self.source, self.into = plan, rank, source, into
        self.dtype, self.group = dtype, group
        self.traffic = Traffic()
        self._limit = max(1, bucket_bytes // dtype.itemsize)
        self._small = -(-SMALL_BYTES // dtype.itemsize)
        self._needs = plan.needs(self._small)
        self._runs = plan.buckets(self._limit // 2, self._small)
        self._boxes = [plan.source.box(p, rank) for p in plan.parameters]
        self._wanted = [plan.target.box(p, rank) for p in plan.parameters]
        self._moves = [list(plan.moves(number, rank)) for number in range(len(plan.parameters))]
        self._check(source, self._boxes, "have")
        if into is not None:
            self._check(into, self._wanted, "be given")
        self._own = [sum(map(self._own_need, run)) for run in self._runs]
        usual = max((own for own in self._own if own <= self._limit // 2), default=0)
        self._buffers = Buffers(dtype, torch.device(device), usual)

    def _check(self, tensors: Mapping[str, Tensor], boxes: list[Box | None], what: str) -> None:
        for parameter, box in zip(self.plan.parameters, boxes, strict=True):
            if box is None:
                continue
            held, wanted = tensors.get(parameter.name), _shape(box)
            if held is None or tuple(held.shape) != wanted:
                raise EngineError(
                    f"rank {self.rank} must {what} {parameter.name} of the shape {wanted}, "
                    f"got {None if held is None else tuple(held.shape)}"
                )
            if held.dtype != self.dtype and not held.is_floating_point():
                raise EngineError(
                    f"{parameter.name} is {held.dtype} and the target {self.dtype}: only "
                    "floating point is cast",
                    hint="leave integer buffers out of the plan; they are made anew",
                )
            if tensors is self.into and (held.dtype != self.dtype or not held.is_contiguous()):
                raise EngineError(
                    f"rank {self.rank} must be given {parameter.name} contiguous and {self.dtype}, "
                    f"got {held.dtype} with strides {held.stride()}"
                )

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        """Target shards by name; each rank of the plan must run through all of them."""
        self.traffic = Traffic()
        waiting: Transfer | None = None
        half = self._limit // 2
        for run, own in zip(self._runs, self._own, strict=True):
            # All ranks decide alike, by the needs that the plan gives: nobody waits for a message
            # that its sender holds back.
            if waiting is not None and max(self._size(waiting.run), self._size(run)) > half:
                yield from waiting.finish()
                waiting = None
            upcoming = self._start(run, own)
            if waiting is not None:
                yield from waiting.finish()
            waiting = upcoming
        if waiting is not None:
            yield from waiting.finish()
        self._buffers.clear()

    def _size(self, run: range) -> int:
        return sum(self._needs[number] for number in run)

    # ------------------------------------------------------------------ one bucket

    def _start(self, run: range, own: int) -> Transfer:
        """Post what goes out and what comes in."""
        transfer = Transfer(run, self._buffers, own)
        for number in run:
            self._bring(number, transfer)
            self._send(number, transfer)
        transfer.post(self.group)
        traffic, size = self.traffic, self.dtype.itemsize
        traffic.received_bytes += transfer.received * size
        traffic.sent_bytes += transfer.sent * size
        traffic.buffer_bytes = max(traffic.buffer_bytes, self._buffers.held_bytes)
        return transfer

    def _own_need(self, number: int) -> int:
        """Elements of buffer that this rank takes for a parameter."""
        want, total = self._wanted[number], 0
        if want is not None and self.into is None and self._in_place(number, want) is None:
            total += volume(want)
        copied: set[Box] = set()
        for move in self._moves[number]:
            small = move.numel < self._small
            if move.receiver == self.rank:
                if move.sender != self.rank:
                    assert want is not None  # noqa: S101 - it receives
                    total += move.numel if small or not contiguous(move.box, want) else 0
            elif small or (move.box not in copied and self._must_copy(self._piece(move))):
                total += move.numel
                copied.add(move.box)
        return total

    def _bring(self, number: int, transfer: Transfer) -> None:
        """Make the place of a parameter's target and say what comes into it."""
        name, want = self.plan.parameters[number].name, self._wanted[number]
        if want is None:
            return
        view = self._in_place(number, want)
        if view is not None:
            self.traffic.in_place.append(name)
            transfer.made[name] = view
            return
        if self.into is None:
            target = transfer.take(volume(want)).view(_shape(want))
        else:
            target = self.into[name].detach()
        transfer.made[name] = target
        for move in self._moves[number]:
            if move.receiver != self.rank:
                continue
            place = _slice(target, move.box, want)
            if move.sender == self.rank:
                transfer.copies.append((place, self._piece(move)))
            else:
                transfer.receive(move.sender, place, small=move.numel < self._small)

    def _send(self, number: int, transfer: Transfer) -> None:
        """Hand out this rank's pieces, each copied at most once."""
        ready: dict[Box, Tensor] = {}
        for move in self._moves[number]:
            if move.receiver == self.rank:
                continue
            small = move.numel < self._small
            if move.box not in ready:
                piece = self._piece(move)
                if not small and self._must_copy(piece):
                    piece = transfer.take(move.numel).view(piece.shape).copy_(piece)
                ready[move.box] = piece
            transfer.send(move.receiver, ready[move.box], small=small)

    def _must_copy(self, piece: Tensor) -> bool:
        return piece.dtype != self.dtype or not piece.is_contiguous()

    def _in_place(self, number: int, want: Box) -> Tensor | None:
        """The target as a view of the source, where it is one."""
        mine = [move for move in self._moves[number] if move.receiver == self.rank]
        if self.into is not None or len(mine) != 1 or mine[0].sender != self.rank:
            return None
        view = self._piece(mine[0])
        return None if self._must_copy(view) else view

    def _piece(self, move: Move) -> Tensor:
        """A view of this rank's shard."""
        box = self._boxes[move.parameter]
        assert box is not None  # noqa: S101 - the plan names holders only
        name = self.plan.parameters[move.parameter].name
        return _slice(self.source[name].detach(), move.box, box)


def _shape(box: Box) -> tuple[int, ...]:
    return tuple(stop - start for start, stop in box)


def _slice(tensor: Tensor, box: Box, within: Box) -> Tensor:
    """The part of a tensor that holds ``within`` which is ``box``."""
    index = tuple(
        slice(start - low, stop - low) for (start, stop), (low, _) in zip(box, within, strict=True)
    )
    return tensor[index]
