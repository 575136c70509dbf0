"""What the hand-written decoders have in common: embedding in, layers, logits out."""

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

import torch

if TYPE_CHECKING:
    from torch import Tensor

Attend = Callable[[int, "Tensor"], "Tensor"]
"""(layer, qkv [t, Hk, G + 2, D]) → [t, Hk·G·D]; stores the keys and values too. Each key head's
group is G queries, one key and one value."""

Weights = Mapping[str, "Tensor"]
"""Parameters under their checkpoint names, in the compute dtype, on the device."""

T = TypeVar("T")


class Network(Protocol):
    """A causal language model over a flat list of t tokens; attention is the caller's."""

    loaded: Any
    """Fused weights, None before the first ``load``."""
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    scale: float

    def load(self, weights: Weights) -> None:
        """Build fused weights."""
        ...

    def hidden(self, tokens: "Tensor", positions: "Tensor", attend: Attend) -> "Tensor":
        """[t, H] after the last layer, before the final norm."""
        ...

    def logits(self, hidden: "Tensor") -> "Tensor":
        """[t, V] float32."""
        ...


def tensors_of(value: Any) -> list["Tensor"]:  # noqa: ANN401 - any structure
    """All tensors in a structure of dataclasses, lists and tensors."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, list):
        return [t for item in value for t in tensors_of(item)]
    if is_dataclass(value):
        return [t for f in fields(value) for t in tensors_of(getattr(value, f.name))]
    return []


def moved(value: T, device: torch.device) -> T:
    """The same structure with its tensors on another device."""
    if isinstance(value, torch.Tensor):
        return cast("T", value.to(device))
    if isinstance(value, list):
        return cast("T", [moved(item, device) for item in value])
    if is_dataclass(value):
        new = {f.name: moved(getattr(value, f.name), device) for f in fields(value)}
        return cast("T", cast("Any", type(value))(**new))
    return value


def size_bytes(value: Any) -> int:  # noqa: ANN401 - any structure
    """Bytes of the distinct tensors of a structure."""
    return sum(t.numel() * t.element_size() for t in {id(t): t for t in tensors_of(value)}.values())
