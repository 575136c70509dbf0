"""Preallocated KV memory with dense rows, and attention of one new token a row over it.

Shape suffixes: n = running rows, Hk = key/value heads, G = query heads that share one of them,
D = head size, L = positions reserved for a row, W = positions attended to, B = prompts,
P = prompt tokens. Queries, keys and values come as [n, Hk, G + 2, D]: the queries of a group, then
its key, then its value, so that every product below reads them where they are.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What all layers of one decoding step share.

    Args:
        n: rows that run.
        positions: [n] int64, where each new token goes.
        width: W, positions that are attended to.
        at: the common position of all rows, or -1 where they differ.
        bias: [n·Hk, 1, W], 0 where a row may look and -inf elsewhere.
        beta: 1, or 0 when every row sees everything and ``bias`` is not read.
        index: [n, 2·Hk] flat rows of the storage that the new keys and values go to; None with
            a common position.
    """

    n: int
    positions: "Tensor"
    width: int
    at: int
    bias: "Tensor"
    beta: int
    index: "Tensor | None"


_SHORTEST = 16
"""Positions attended to at least: a softmax over fewer leaves the vectorised path of the CPU
(2,048 rows over 11 positions took three times as long as over 40)."""


class KVCache:
    """Keys and values of the running rows: [layers, 2, rows, Hk, L, D], rows 0..n-1 in use."""

    def __init__(
        self, layers: int, kv_heads: int, head_dim: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.layers, self.kv_heads, self.head_dim = layers, kv_heads, head_dim
        # On CPU keys and values are kept in float32 whatever the model computes in: products of
        # one query with bf16 keys took four times as long there, the fused kernel nine times.
        self.dtype = torch.float32 if device.type == "cpu" else dtype
        self.device = device
        self.lengths: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        """[rows] tokens stored for each row, on the host."""
        self.fixed = False
        self._memory = torch.zeros(0, dtype=self.dtype, device=device)
        self._views: list[tuple[Tensor, Tensor, Tensor]] = []
        self._no_bias = torch.zeros(1, 1, 1, dtype=self.dtype, device=device)
        self._use_bmm = device.type == "cpu"

    @property
    def size_bytes(self) -> int:
        """Bytes held."""
        return self._memory.numel() * self._memory.element_size()

    def free(self) -> int:
        """Give the memory back; returns its bytes."""
        freed = self.size_bytes
        self._kv = self._memory = torch.zeros(0, dtype=self.dtype, device=self.device)
        self._views = []
        return freed

    def reserve(self, rows: int, length: int, *, fixed: bool = False) -> None:
        """Lay out room for ``rows`` of ``length`` tokens; memory of earlier calls is reused.

        Args:
            rows: running rows at most.
            length: L, prompt and response tokens of a row at most.
            fixed: always compute all rows over all positions, for bit-identical results.
        """
        length = max(length, _SHORTEST)
        shape = (self.layers, 2, rows, self.kv_heads, length, self.head_dim)
        need = int(np.prod(shape, dtype=np.int64))
        if self._memory.numel() < need:
            self.free()
            # Zeros, since masked positions are multiplied by 0 and must not hold a NaN.
            self._memory = torch.zeros(need, dtype=self.dtype, device=self.device)
        kv = self._memory[:need].view(shape)
        self._kv = kv
        per_layer = 2 * rows * self.kv_heads
        self._views = [
            (
                layer[0].view(rows * self.kv_heads, length, self.head_dim),
                layer[1].view(rows * self.kv_heads, length, self.head_dim),
                layer.view(per_layer * length, self.head_dim),
            )
            for layer in kv.unbind(0)
        ]
        # Storage row of (row, key or value, head) at position 0.
        place = torch.arange(per_layer, device=self.device) * length
        self._base = (
            place.view(2, rows, self.kv_heads).transpose(0, 1).reshape(rows, 2 * self.kv_heads)
        )
        self._columns = torch.arange(length, device=self.device)
        self.lengths = np.zeros(rows, dtype=np.int64)
        self.fixed = fixed

    def plan(self, n: int) -> StepPlan:
        """Prepare one step of the first ``n`` rows (all rows when shapes are fixed)."""
        if self.fixed:
            self.lengths[n:] = 0
            n = len(self.lengths)
        lengths = self.lengths[:n]
        low, high = int(lengths.min()), int(lengths.max())
        positions = torch.from_numpy(lengths.copy()).to(self.device)
        at, index = -1, None
        if low == high and not self.fixed:
            at = high
        else:
            index = (self._base[:n] + positions.unsqueeze(1)).view(n, 2, self.kv_heads)
        width = len(self._columns) if self.fixed else max(high + 1, _SHORTEST)
        if at == width - 1:
            return StepPlan(n, positions, width, at, self._no_bias, 0, index)
        hidden = self._columns[:width] > positions.unsqueeze(1)
        bias_nW = torch.zeros(n, width, dtype=self.dtype, device=self.device)
        bias_nW.masked_fill_(hidden, float("-inf"))
        bias = bias_nW.unsqueeze(1).expand(n, self.kv_heads, width)
        bias = bias.reshape(n * self.kv_heads, 1, width)
        return StepPlan(n, positions, width, at, bias, 1, index)

    def advance(self, n: int) -> None:
        """Count the token that a step has stored for each of the first ``n`` rows."""
        self.lengths[:n] += 1

    def attend(self, layer: int, plan: StepPlan, qkv: "Tensor", scale: float) -> "Tensor":
        """Store a layer's new keys and values, then attend to everything stored.

        Args:
            layer: number of the layer.
            plan: of this step.
            qkv: [n, Hk, G + 2, D], contiguous.
            scale: multiplies the scores.

        Returns:
            [n, Hk·G·D].
        """
        compute, qkv = qkv.dtype, qkv.to(self.dtype)
        keys, values, flat = self._views[layer]
        n, heads, size, width = plan.n, self.kv_heads, self.head_dim, plan.width
        group = qkv.shape[2] - 2
        # as_strided in place of chains of views: each view costs as much as a small kernel.
        row, each = heads * (group + 2) * size, (group + 2) * size
        if plan.index is None:
            new = qkv.as_strided((2, n, heads, size), (size, row, each, 1), group * size)
            self._kv[layer, :, :n, :, plan.at].copy_(new)
        else:
            new = qkv.as_strided((n, 2, heads, size), (row, size, each, 1), group * size)
            flat.index_put_((plan.index,), new)
        if self._use_bmm:
            # One new token a row: two batched products beat the fused kernel, whose blocks of
            # queries stay empty, and a shared key head serves its group of query heads at once.
            rows, stride = n * heads, keys.stride(0)
            q = qkv.as_strided((rows, group, size), (each, size, 1))
            k = keys.as_strided((rows, size, width), (stride, 1, size))
            v = values.as_strided((rows, width, size), (stride, size, 1))
            scores = torch.baddbmm(plan.bias, q, k, beta=plan.beta, alpha=scale)
            return torch.bmm(torch.softmax(scores, -1), v).view(n, -1).to(compute)
        shape = (n, heads, width, size)
        mask = plan.bias.view(n, heads, 1, width)[:, :1] if plan.beta else None
        out = F.scaled_dot_product_attention(
            qkv[:, :, :group].reshape(n, heads * group, 1, size),
            keys[: n * heads, :width].view(shape),
            values[: n * heads, :width].view(shape),
            attn_mask=mask,
            scale=scale,
            enable_gqa=group > 1,
        )
        return out.reshape(n, -1)

    def place(
        self, stored: "Tensor", lengths: "NDArray[np.int64]", index: "NDArray[np.int64]", row: int
    ) -> None:
        """Copy prompts into rows ``row``, ``row + 1``, ….

        Args:
            stored: [layers, 2, B, Hk, P, D], keys and values of prefilled prompts.
            lengths: [B] tokens of each prompt.
            index: which prompt each of the new rows starts from.
            row: first new row.
        """
        chosen = lengths[index]
        width = int(chosen.max())
        source = torch.from_numpy(index).to(self.device)
        rows = self._kv[:, :, row : row + len(index), :, :width]
        rows.copy_(stored[..., :width, :].index_select(2, source))
        self.lengths[row : row + len(index)] = chosen

    def move(self, source: "NDArray[np.int64]", target: "NDArray[np.int64]") -> None:
        """Copy rows onto others, which are dropped."""
        width = int(self.lengths[source].max(initial=0))
        used = self._kv[..., :width, :]
        to = torch.from_numpy(target).to(self.device)
        used.index_copy_(2, to, used.index_select(2, torch.from_numpy(source).to(self.device)))
        self.lengths[target] = self.lengths[source]
