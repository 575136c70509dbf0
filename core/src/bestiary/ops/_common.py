"""Checks and conversions that all ops share."""

from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

Number = int | float
"""A scalar option. Spelt out because run-time type checkers do not take an int for a float."""


@runtime_checkable
class Reduce(Protocol):
    """Adds up partial sums over the shards of one global batch, as ``bestiary.protocols.Reduce``.

    An op calls it equally often on every shard, whatever its data, so it may be a collective.
    """

    def sum(self, x: Tensor) -> Tensor:
        """The elementwise sum of a float64 vector over the shards, the same on each."""
        ...


MAX_LOG_RATIO = 20.0
"""Where log ratios are cut before ``exp``: e^20 is far outside every trust region."""


def widen(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Convert to one common dtype, float32 at least; float64 if any input is float64."""
    dtype = torch.float32
    for tensor in tensors:
        dtype = torch.promote_types(dtype, tensor.dtype)
    return tuple(tensor.to(dtype) for tensor in tensors)


def live(x: Tensor, mask: Tensor | None) -> Tensor:
    """Replace the values outside the mask by 0, so that neither they nor their gradients leak."""
    return x if mask is None else torch.where(mask, x, 0.0)


def same_shape(op: str, **tensors: Tensor | None) -> None:
    """Refuse tensors that would broadcast in silence."""
    shapes = {name: tuple(t.shape) for name, t in tensors.items() if t is not None}
    if len(set(shapes.values())) > 1:
        listed = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
        raise ValueError(f"{op} needs tensors of one shape, got {listed}")


def one_per_row(op: str, rows: int, **tensors: Tensor | None) -> None:
    """Refuse per-sequence tensors that do not have one value for each row."""
    for name, tensor in tensors.items():
        if tensor is not None and tuple(tensor.shape) != (rows,):
            raise ValueError(f"{op} needs {name} of shape ({rows},), got {tuple(tensor.shape)}")


def one_of(option: str, value: str, allowed: tuple[str, ...]) -> None:
    """Refuse a name that is not an option."""
    if value not in allowed:
        raise ValueError(f"{option}={value!r} is unknown; choose one of {', '.join(allowed)}")


def within(option: str, value: Number, low: Number, high: Number) -> None:
    """Refuse a scalar outside ``[low, high]``, NaN included."""
    if not low <= value <= high:
        raise ValueError(f"{option} must lie in [{low}, {high}], got {value}")


def exp_ratio(log_ratio: Tensor) -> Tensor:
    """Exponentiate a log ratio that cannot overflow; below the cut the value is exact."""
    return log_ratio.clamp(max=MAX_LOG_RATIO).exp()
