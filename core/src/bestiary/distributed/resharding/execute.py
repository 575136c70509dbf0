"""A plan carried out over a process group, bucket by bucket."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from bestiary.distributed.resharding.layout import Box
from bestiary.distributed.resharding.plan import Move, Plan
from bestiary.errors import EngineError

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

BUCKET_BYTES = 64 << 20
"""Target bytes that are on their way at once."""


@dataclass(slots=True)
class Traffic:
    """What a rank did: counted where it happens, to be compared with the plan.

    Args:
        received_bytes: from other ranks.
        sent_bytes: to other ranks.
        buffer_bytes: the largest receive buffers of one bucket, which is the extra memory.
        in_place: parameters that were handed on without a copy.
    """

    received_bytes: int = 0
    sent_bytes: int = 0
    buffer_bytes: int = 0
    in_place: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Bucket:
    """One run of parameters on its way."""

    run: range
    requests: list[Any]
    incoming: dict[int, Tensor]
    outgoing: list[Tensor]


class Resharder:
    """Brings this rank's target shards, one bucket after another.

    The next bucket is on its way while the caller works with the current one. Pieces are cast by
    the sender, so the wire carries the target's dtype.

    Args:
        plan: the same on every rank.
        rank: of this process in the group, as the plan numbers it.
        source: this rank's shards by parameter name, each of the shape of its box; read only.
        dtype: of the target; None is that of each source tensor, which all ranks must agree on.
        device: where targets and buffers are made.
        bucket_bytes: target bytes of a bucket; a larger parameter is one alone.
        group: None is the default group.

    Raises:
        EngineError: for a source tensor that does not have the shape of its box.
    """

    def __init__(
        self,
        plan: Plan,
        rank: int,
        source: Mapping[str, Tensor],
        *,
        dtype: torch.dtype,
        device: str | torch.device = "cpu",
        bucket_bytes: int = BUCKET_BYTES,
        group: "ProcessGroup | None" = None,
    ) -> None:
        self.plan, self.rank, self.source = plan, rank, source
        self.dtype, self.device, self.group = dtype, torch.device(device), group
        self.traffic = Traffic()
        self._limit = max(1, bucket_bytes // dtype.itemsize)
        self._boxes = [plan.source.box(p, rank) for p in plan.parameters]
        for parameter, box in zip(plan.parameters, self._boxes, strict=True):
            if box is None:
                continue
            held = source.get(parameter.name)
            wanted = tuple(stop - start for start, stop in box)
            if held is None or tuple(held.shape) != wanted:
                raise EngineError(
                    f"rank {rank} must have {parameter.name} of the shape {wanted}, "
                    f"got {None if held is None else tuple(held.shape)}"
                )

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        """Target shards by name; each rank of the plan must run through all of them."""
        runs = self.plan.buckets(self._limit)
        waiting = self._start(runs[0])
        for following in [*runs[1:], None]:
            upcoming = None if following is None else self._start(following)
            made = self._finish(waiting)
            if made:
                yield made
            if upcoming is None:
                return
            waiting = upcoming

    # ------------------------------------------------------------------ one bucket

    def _start(self, run: range) -> _Bucket:
        out: dict[int, list[Tensor]] = {}
        sizes: dict[int, int] = {}
        for number in run:
            for move in self.plan.moves[number]:
                if move.sender == move.receiver:
                    continue
                if move.sender == self.rank:
                    piece = self._piece(move).reshape(-1)
                    out.setdefault(move.receiver, []).append(piece.to(self.dtype))
                elif move.receiver == self.rank:
                    sizes[move.sender] = sizes.get(move.sender, 0) + move.numel
        outgoing = {peer: torch.cat(parts) for peer, parts in out.items()}
        incoming = {
            peer: torch.empty(size, dtype=self.dtype, device=self.device)
            for peer, size in sizes.items()
        }
        operations = [
            dist.P2POp(dist.irecv, buffer, self._peer(peer), self.group)
            for peer, buffer in sorted(incoming.items())
        ]
        operations += [
            dist.P2POp(dist.isend, buffer, self._peer(peer), self.group)
            for peer, buffer in sorted(outgoing.items())
        ]
        requests = dist.batch_isend_irecv(operations) if operations else []
        got = sum(b.numel() for b in incoming.values()) * self.dtype.itemsize
        self.traffic.received_bytes += got
        self.traffic.sent_bytes += sum(b.numel() for b in outgoing.values()) * self.dtype.itemsize
        self.traffic.buffer_bytes = max(self.traffic.buffer_bytes, got)
        return _Bucket(run, requests, incoming, list(outgoing.values()))

    def _peer(self, rank: int) -> int:
        return rank if self.group is None else dist.get_global_rank(self.group, rank)

    def _finish(self, bucket: _Bucket) -> dict[str, Tensor]:
        for request in bucket.requests:
            request.wait()
        place = dict.fromkeys(bucket.incoming, 0)
        made: dict[str, Tensor] = {}
        for number in bucket.run:
            parameter = self.plan.parameters[number]
            want = self.plan.target.box(parameter, self.rank)
            mine = [m for m in self.plan.moves[number] if m.receiver == self.rank]
            if want is None:
                continue
            if len(mine) == 1 and mine[0].sender == self.rank and self._whole_rows(number, want):
                view = self._piece(mine[0])
                if view.dtype == self.dtype and view.is_contiguous():
                    made[parameter.name] = view
                    self.traffic.in_place.append(parameter.name)
                    continue
            shape = [stop - start for start, stop in want]
            target = torch.empty(shape, dtype=self.dtype, device=self.device)
            for move in mine:
                if move.sender == self.rank:
                    piece = self._piece(move)
                else:
                    start = place[move.sender]
                    place[move.sender] = start + move.numel
                    piece = bucket.incoming[move.sender][start : start + move.numel]
                    piece = piece.view([b - a for a, b in move.box])
                _slice(target, move.box, want).copy_(piece)
            made[parameter.name] = target
        return made

    def _whole_rows(self, number: int, want: Box) -> bool:
        have = self._boxes[number]
        return have is not None and have[1:] == want[1:]

    def _piece(self, move: Move) -> Tensor:
        """A view of this rank's shard."""
        box = self._boxes[move.parameter]
        assert box is not None  # noqa: S101 - the plan names holders only
        name = self.plan.parameters[move.parameter].name
        return _slice(self.source[name].detach(), move.box, box)


def _slice(tensor: Tensor, box: Box, within: Box) -> Tensor:
    """The part of a tensor that holds ``within`` which is ``box``."""
    index = tuple(
        slice(start - low, stop - low) for (start, stop), (low, _) in zip(box, within, strict=True)
    )
    return tensor[index]
