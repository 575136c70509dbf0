"""Decoders: prefill prompts, keep running rows dense, and give logits for the next token."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F

from bestiary.engines.local import network as net
from bestiary.engines.local.kv_cache import KVCache

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from bestiary.engines.local.network import Network, Weights


@dataclass(frozen=True, slots=True)
class Prefilled:
    """Prompts that were read, waiting to be handed to rows.

    Args:
        logits: [B, V] float32 for the first response token.
        lengths: [B] prompt tokens.
        state: what the decoder stored for them.
    """

    logits: "Tensor"
    lengths: "NDArray[np.int64]"
    state: Any


class Decoder(Protocol):
    """Rows 0..n-1 run; the caller counts n and keeps them dense with ``move``."""

    fixed_rows: int
    """Rows at most in deterministic mode, 0 for any number."""

    def load(self, weights: "Weights") -> None:
        """Take new weights (checkpoint names, compute dtype, on the device)."""
        ...

    def reserve(self, rows: int, length: int, *, fixed: bool) -> None:
        """Make room for ``rows`` of ``length`` tokens; ``fixed`` asks for constant shapes."""
        ...

    def prefill(self, prompts: "Sequence[NDArray[np.int64]]") -> Prefilled:
        """Read prompts, padded on one side."""
        ...

    def place(self, prompts: Prefilled, index: "NDArray[np.int64]", row: int) -> None:
        """Start rows ``row``, ``row + 1``, … from the prompts at ``index``."""
        ...

    def step(self, tokens: "Tensor") -> "Tensor":
        """[n, V] float32 logits after feeding one token to each of the n rows."""
        ...

    def move(self, source: "NDArray[np.int64]", target: "NDArray[np.int64]", n: int) -> None:
        """Copy rows ``source`` onto ``target``; afterwards the first ``n`` rows run."""
        ...

    def free(self) -> int:
        """Drop KV memory; returns its bytes."""
        ...

    def kv_bytes(self) -> int:
        """Bytes of KV memory that is held."""
        ...

    def weight_bytes(self) -> int:
        """Bytes of the loaded weights."""
        ...

    def drop(self) -> None:
        """Let go of the weights, so that new ones need no room beside them."""
        ...

    def to(self, device: torch.device) -> None:
        """Move the weights."""
        ...


class FastDecoder:
    """Runs a hand-written network over preallocated KV memory.

    Args:
        network: the architecture.
        dtype: of computation.
        device: where it runs.
    """

    fixed_rows = 0

    def __init__(self, network: "Network", dtype: torch.dtype, device: torch.device) -> None:
        self.network, self.dtype, self.device = network, dtype, device
        self.cache = KVCache(network.layers, network.kv_heads, network.head_dim, dtype, device)

    def load(self, weights: "Weights") -> None:
        """Build fused weights."""
        self.network.load(weights)

    def reserve(self, rows: int, length: int, *, fixed: bool) -> None:
        """Lay out the KV memory."""
        self.cache.reserve(rows, length, fixed=fixed)

    def prefill(self, prompts: "Sequence[NDArray[np.int64]]") -> Prefilled:
        """Read prompts padded on the right: causal attention never looks at the padding."""
        lengths = np.array([len(p) for p in prompts], dtype=np.int64)
        count, width = len(prompts), int(lengths.max())
        padded = np.zeros((count, width), dtype=np.int64)
        for row, prompt in zip(padded, prompts, strict=True):
            row[: len(prompt)] = prompt
        tokens = torch.from_numpy(padded.reshape(-1)).to(self.device)
        positions = torch.arange(width, device=self.device).repeat(count)
        attend = _PromptAttention(self.network, count, width, self.cache.dtype, self.device)
        hidden = self.network.hidden(tokens, positions, attend)
        last = torch.from_numpy(np.arange(count) * width + lengths - 1).to(self.device)
        return Prefilled(self.network.logits(hidden[last]), lengths, attend.stored)

    def place(self, prompts: Prefilled, index: "NDArray[np.int64]", row: int) -> None:
        """Expand the keys and values of the prompts into rows."""
        self.cache.place(prompts.state, prompts.lengths, index, row)

    def step(self, tokens: "Tensor") -> "Tensor":
        """One token for each running row."""
        n = len(tokens)
        plan = self.cache.plan(n)
        if plan.n > n:
            tokens = F.pad(tokens, (0, plan.n - n))
        scale, cache = self.network.scale, self.cache

        def attend(layer: int, qkv: "Tensor") -> "Tensor":
            return cache.attend(layer, plan, qkv, scale)

        hidden = self.network.hidden(tokens, plan.positions, attend)
        self.cache.advance(n)
        return self.network.logits(hidden)[:n]

    def move(self, source: "NDArray[np.int64]", target: "NDArray[np.int64]", n: int) -> None:
        """Swap with last: the holes are filled from the end."""
        if len(source):
            self.cache.move(source, target)

    def free(self) -> int:
        """Drop KV memory."""
        return self.cache.free()

    def kv_bytes(self) -> int:
        """Bytes of KV memory that is held."""
        return self.cache.size_bytes

    def weight_bytes(self) -> int:
        """Bytes of fused weights."""
        return net.size_bytes(self.network.loaded)

    def drop(self) -> None:
        """Let go of the fused weights."""
        self.network.loaded = None

    def to(self, device: torch.device) -> None:
        """Move fused weights."""
        self.network.loaded = net.moved(self.network.loaded, device)


class _PromptAttention:
    """Causal attention over padded prompts that keeps their keys and values."""

    def __init__(
        self, network: "Network", count: int, width: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.network, self.count, self.width = network, count, width
        shape = (network.layers, 2, count, network.kv_heads, width, network.head_dim)
        self.stored = torch.empty(shape, dtype=dtype, device=device)

    def __call__(self, layer: int, qkv: "Tensor") -> "Tensor":
        network = self.network
        group = network.heads // network.kv_heads
        shape = (self.count, self.width, network.kv_heads, group + 2, network.head_dim)
        # [group + 2, B, Hk, P, D]
        parts = qkv.to(self.stored.dtype).view(shape).permute(3, 0, 2, 1, 4)
        stored = self.stored[layer]
        stored.copy_(parts[group:])
        queries = parts[:group].permute(1, 2, 0, 3, 4)
        out = F.scaled_dot_product_attention(
            queries.reshape(self.count, network.heads, self.width, network.head_dim),
            stored[0],
            stored[1],
            is_causal=True,
            scale=network.scale,
            enable_gqa=group > 1,
        )
        return out.transpose(1, 2).reshape(self.count * self.width, -1).to(qkv.dtype)
