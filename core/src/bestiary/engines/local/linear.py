"""Linear layers for decoding: weights prepacked where the CPU library can, else as they are."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

if TYPE_CHECKING:
    from torch import Tensor

_PACK_ROWS = 128
"""The batch size that the packed layout is chosen for; good for 1 to 512 rows alike."""


@dataclass(frozen=True, slots=True)
class Linear:
    """``x ↦ x Wᵀ + b`` for x of [n, in].

    Args:
        weight: [out, in], or the same in oneDNN's blocked layout.
        bias: [out] or None.
        packed: which of the two it is.
    """

    weight: "Tensor"
    bias: "Tensor | None" = None
    packed: bool = False

    def __call__(self, x: "Tensor") -> "Tensor":
        """[n, out]."""
        if self.packed:
            out: Tensor = torch.ops.mkldnn._linear_pointwise.default(
                x, self.weight, self.bias, "none", [], ""
            )
            return out
        return F.linear(x, self.weight, self.bias)


def can_pack(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether weights can be stored in the blocked layout of oneDNN.

    ``torch.nn.functional.linear`` brings weights into that layout (or goes to a slower library)
    at every call. Packing once was 1.1 times faster at 128 rows, 1.7 at 16 and 3 at 3.
    """
    return (
        device.type == "cpu"
        and dtype in (torch.float32, torch.bfloat16)
        and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call] # torch's stub
        and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    )


def make_linear(weight: "Tensor", bias: "Tensor | None" = None) -> Linear:
    """Prepare a weight [out, in] once for many calls."""
    if can_pack(weight.device, weight.dtype):
        weight = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _PACK_ROWS)
        return Linear(weight, bias, packed=True)
    return Linear(weight, bias)
