"""What one bucket of a reshard holds while it is on its way: memory, messages, copies."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


@dataclass(slots=True)
class Traffic:
    """What a rank did: counted where it happens, to be compared with the plan.

    Args:
        received_bytes: from other ranks.
        sent_bytes: to other ranks.
        buffer_bytes: the most memory that was held beside source and target.
        in_place: parameters that were handed on without a copy.
    """

    received_bytes: int = 0
    sent_bytes: int = 0
    buffer_bytes: int = 0
    in_place: list[str] = field(default_factory=list)


class Buffers:
    """Flat tensors that buckets borrow and give back.

    Args:
        dtype: of the elements.
        device: where they are.
        usual: elements that a buffer has at least, so that the next bucket can use it.
    """

    def __init__(self, dtype: torch.dtype, device: torch.device, usual: int) -> None:
        self.dtype, self._device, self._usual = dtype, device, usual
        self._free: list[Tensor] = []
        self._held = 0

    @property
    def held_bytes(self) -> int:
        """Of all buffers, borrowed or not."""
        return self._held * self.dtype.itemsize

    def borrow(self, size: int) -> Tensor:
        """A tensor of at least that many elements."""
        if not size:
            return torch.empty(0, dtype=self.dtype, device=self._device)
        for index, buffer in enumerate(self._free):
            if buffer.numel() >= size:
                return self._free.pop(index)
        self.clear()
        made = torch.empty(max(size, self._usual), dtype=self.dtype, device=self._device)
        self._held += made.numel()
        return made

    def give_back(self, buffer: Tensor) -> None:
        """For the next bucket; one that is larger than usual is freed."""
        if 0 < buffer.numel() <= self._usual:
            self._free.append(buffer)
        else:
            self._held -= buffer.numel()

    def clear(self) -> None:
        """Free what is not borrowed."""
        self._held -= sum(buffer.numel() for buffer in self._free)
        self._free.clear()


class Transfer:
    """A bucket on its way.

    Args:
        run: the numbers of its parameters.
        buffers: whence its memory comes.
        need: elements that it takes at most.
    """

    def __init__(self, run: range, buffers: Buffers, need: int) -> None:
        self.run, self._buffers = run, buffers
        self._memory, self._used = buffers.borrow(need), 0
        self.made: dict[str, Tensor] = {}
        self.copies: list[tuple[Tensor, Tensor]] = []
        self.received, self.sent = 0, 0
        self._after: list[tuple[Tensor, Tensor]] = []
        self._messages: list[tuple[bool, int, Tensor]] = []
        self._packed_in: dict[int, list[Tensor]] = {}
        self._packed_out: dict[int, list[Tensor]] = {}
        self._requests: list[Any] = []

    def take(self, numel: int) -> Tensor:
        """A part of the bucket's memory, flat."""
        start, self._used = self._used, self._used + numel
        return self._memory[start : self._used]

    def receive(self, peer: int, place: Tensor, *, small: bool) -> None:
        """Expect a piece for a place in a target."""
        self.received += place.numel()
        if small:
            self._packed_in.setdefault(peer, []).append(place)
        elif place.is_contiguous():
            self._messages.append((False, peer, place))
        else:
            buffer = self.take(place.numel()).view(place.shape)
            self._messages.append((False, peer, buffer))
            self._after.append((place, buffer))

    def send(self, peer: int, piece: Tensor, *, small: bool) -> None:
        """Send a piece: small ones as they are, others contiguous and of the target's dtype."""
        self.sent += piece.numel()
        if small:
            self._packed_out.setdefault(peer, []).append(piece)
        else:
            self._messages.append((True, peer, piece))

    def post(self, group: "ProcessGroup | None") -> None:
        """Start all messages, then copy what stays while they are on their way."""
        for peer, places in sorted(self._packed_in.items()):
            flat = self.take(sum(place.numel() for place in places))
            self._messages.append((False, peer, flat))
            self._after += _spread(flat, places)
        for peer, pieces in sorted(self._packed_out.items()):
            flat = self.take(sum(piece.numel() for piece in pieces))
            for piece, place in _spread(flat, pieces):
                place.copy_(piece)
            self._messages.append((True, peer, flat))
        # Receives first: nobody waits for a receiver that has not said where to.
        operations = [
            dist.P2POp(dist.isend if out else dist.irecv, tensor, _peer(peer, group), group)
            for out, peer, tensor in sorted(self._messages, key=lambda message: message[0])
        ]
        self._requests = dist.batch_isend_irecv(operations) if operations else []
        for place, piece in self.copies:
            place.copy_(piece)

    def finish(self) -> Iterator[dict[str, Tensor]]:
        """Wait until everything is there and sent, hand the targets on, give the memory back."""
        for request in self._requests:
            request.wait()
        for place, buffer in self._after:
            place.copy_(buffer)
        if self.made:
            yield self.made
        self._buffers.give_back(self._memory)


def _spread(flat: Tensor, places: list[Tensor]) -> list[tuple[Tensor, Tensor]]:
    """Each place with its part of a flat tensor."""
    out, start = [], 0
    for place in places:
        out.append((place, flat[start : start + place.numel()].view(place.shape)))
        start += place.numel()
    return out


def _peer(rank: int, group: "ProcessGroup | None") -> int:
    return rank if group is None else dist.get_global_rank(group, rank)
