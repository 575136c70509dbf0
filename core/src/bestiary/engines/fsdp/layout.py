"""Where weights and gradients live: replicated in flat buffers, or sharded by FSDP2."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn

from bestiary.engines.fsdp.linear import add_in_place

_ALIGN = 64
"""Parameters start at multiples of this many elements of a flat buffer (cache lines, vectors)."""

_RUN = 4096
"""Elements that are added in float32 before sums go on in float64."""


@dataclass(frozen=True, slots=True)
class Piece:
    """This rank's part of one parameter, a range of rows of its first dim.

    Args:
        name: checkpoint name.
        whole: shape of the whole parameter.
        start: first row of the part.
        weight: float32 master, of the part's shape, sharing memory with the layout.
        unit: number of the optimizer tensor that holds it.
        offset: where it begins there, in elements.
    """

    name: str
    whole: tuple[int, ...]
    start: int
    weight: Tensor
    unit: int
    offset: int


class Layout(Protocol):
    """Weights and gradients of one model on one rank."""

    weights: list[Tensor]
    """Float32 masters, as few tensors as possible: what the optimizer updates."""
    grads: list[Tensor]
    """Gradients of the same shapes, valid after :meth:`reduce`."""
    skips_dummies: bool
    """Micro-batches of weight zero need not run: no collectives happen inside of them."""

    def zero(self) -> None:
        """Forget gradients."""

    def free_gradients(self) -> int:
        """Give back the memory of gradients until the next :meth:`zero`; returns its bytes."""
        ...

    def after_backward(self) -> None:
        """Called after each micro-batch."""

    def reduce(self) -> None:
        """Sum gradients over the ranks."""

    def squared_norm(self) -> Tensor:
        """[] float64, the same on every rank."""
        ...

    def publish(self) -> None:
        """Make updated masters known to the module."""

    def pieces(self) -> list[Piece]:
        """What this rank holds; over all ranks every row is there at least once."""
        ...

    def whole(self, *, trained: bool = False) -> Iterator[tuple[str, Tensor]]:
        """Whole parameters one after another, the same on each rank; all, or the trained ones.

        Float32, but for frozen ones beside trained ones, which may be in the computation's dtype.
        """
        ...


def checkpoint_names(module: nn.Module) -> dict[str, nn.Parameter]:
    """Parameters by their checkpoint names; tied ones once."""
    return {name.removeprefix("lm."): p for name, p in module.named_parameters()}


class Replicated:
    """Every rank has all weights; gradients are added in one all-reduce.

    Weights and gradients are views of flat buffers, so that clipping, the optimizer and the
    all-reduce each work on one tensor.

    Args:
        module: its parameters are moved into the buffer.
        dtype: what the module computes in; below float32 it gets a copy that is cast once a step.
        trainable: False makes no gradients and keeps the weights in ``dtype`` only.
        world: ranks that share the gradients.
        partial: leave parameters that require no gradient as they are, in ``dtype``, outside of
            the buffer.
    """

    skips_dummies = True

    def __init__(
        self,
        module: nn.Module,
        dtype: torch.dtype,
        *,
        trainable: bool,
        world: int,
        partial: bool = False,
    ) -> None:
        self.world = world
        self.spans: dict[str, tuple[int, tuple[int, ...]]] = {}
        self._all = checkpoint_names(module)
        params = {n: p for n, p in self._all.items() if p.requires_grad or not partial}
        for name, p in self._all.items():
            if name not in params:
                p.data = p.data.to(dtype)
        size = 0
        for name, p in params.items():
            self.spans[name] = (size, tuple(p.shape))
            size += -(-p.numel() // _ALIGN) * _ALIGN
        size = -(-size // _RUN) * _RUN
        device = next(iter(params.values())).device
        self.master = torch.zeros(size, dtype=torch.float32, device=device)
        for name, p in params.items():
            self._view(self.master, name).copy_(p.detach())
        if not trainable:
            self.master = self.master.to(dtype)
        same = dtype == self.master.dtype
        self.live = self.master if same else self.master.to(dtype)
        self.weights = [self.master]
        self.grads: list[Tensor] = []
        self._params = params
        for name, p in params.items():
            p.data = self._view(self.live, name)
            p.requires_grad_(trainable)
        if trainable:
            self.grads = [torch.zeros_like(self.master)]
            if same:
                for name, p in params.items():
                    p.grad = self._view(self.grads[0], name)
                add_in_place(module)

    def _view(self, flat: Tensor, name: str) -> Tensor:
        start, shape = self.spans[name]
        return flat[start : start + _numel(shape)].view(shape)

    def zero(self) -> None:
        """Forget gradients."""
        flat = self.grads[0]
        size = flat.numel() * flat.element_size()
        if flat.untyped_storage().nbytes() < size:  # freed; views of it come back as well
            flat.untyped_storage().resize_(size)
        flat.zero_()

    def free_gradients(self) -> int:
        """Give back the flat buffer; the parameters' views of it stay where they are."""
        freed = 0
        for flat in self.grads:
            freed += flat.untyped_storage().nbytes()
            flat.untyped_storage().resize_(0)
        return freed

    def after_backward(self) -> None:
        """Add a micro-batch's gradients to the float32 sum."""
        if self.live is self.master:
            return
        for name, p in self._params.items():
            if p.grad is not None:
                self._view(self.grads[0], name).add_(p.grad)
                p.grad = None

    def reduce(self) -> None:
        """Sum gradients over the ranks."""
        if self.world > 1:
            dist.all_reduce(self.grads[0])

    def squared_norm(self) -> Tensor:
        """[] float64, the same on every rank."""
        return squared_norm(self.grads[0])

    def publish(self) -> None:
        """Cast the masters for the next forward pass."""
        if self.live is not self.master:
            self.live.copy_(self.master)

    def pieces(self) -> list[Piece]:
        """Every parameter, whole."""
        return [
            Piece(name, shape, 0, self._view(self.master, name), 0, start)
            for name, (start, shape) in self.spans.items()
        ]

    def whole(self, *, trained: bool = False) -> Iterator[tuple[str, Tensor]]:
        """The live masters, without a copy, and what is frozen beside them."""
        for name, p in (self._params if trained else self._all).items():
            frozen = name not in self.spans
            yield name, p.detach() if frozen else self._view(self.master, name)


def squared_norm(x: Tensor) -> Tensor:
    """[] float64: short runs in float32, their sum in float64, without a float64 copy of ``x``."""
    flat = x.reshape(-1)
    cut = flat.numel() // _RUN * _RUN
    runs = torch.linalg.vector_norm(flat[:cut].view(-1, _RUN), dim=1)
    rest = torch.linalg.vector_norm(flat[cut:])
    total: Tensor = torch.cat([runs, rest[None]]).double().square().sum()
    return total


def _numel(shape: tuple[int, ...]) -> int:
    return int(torch.Size(shape).numel())


def buckets(tensors: Iterator[tuple[str, Tensor]], limit: int) -> Iterator[Mapping[str, Tensor]]:
    """Collect tensors up to ``limit`` bytes; a larger one is alone."""
    bucket: dict[str, Tensor] = {}
    size = 0
    for name, tensor in tensors:
        more = tensor.numel() * tensor.element_size()
        if bucket and size + more > limit:
            yield bucket
            bucket, size = {}, 0
        bucket[name] = tensor
        size += more
    if bucket:
        yield bucket
