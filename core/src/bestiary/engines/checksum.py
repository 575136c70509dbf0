"""A cheap checksum over named tensors, computed alike by trainer and rollout engine.

It guards the hand-over of weights against lost, swapped, renamed and mis-shaped buckets; it is
no defence against an adversary.
"""

import hashlib
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

_GOLDEN = 0x9E3779B97F4A7C15
_WORDS = 1 << 15
"""64-bit words folded at once: 256 KiB, which stays in a core's cache."""
_BLOCK_ROWS_DEVICE = 1 << 12


def _signed(x: int) -> int:
    """The two's complement reading of the low 64 bits."""
    x &= (1 << 64) - 1
    return x - (1 << 64) if x >> 63 else x


def _multipliers(count: int, device: torch.device) -> "Tensor":
    """[count] int64, a different odd number for each position."""
    steps = torch.arange(1, count + 1, dtype=torch.int64, device=device)
    return (steps * _signed(_GOLDEN)) | 1


class Checksum:
    """Adds up named tensors in any order.

    Each tensor contributes a 128-bit hash of its name, its shape and Σ_i m_i·w_i mod 2⁶⁴, where w
    are its float32 values read as 64-bit words and m_i odd multipliers that differ by position,
    so that exchanged elements are seen. Contributions are added mod 2¹²⁸, so that buckets may come
    in any order. A bf16 tensor counts as its float32 values.
    """

    def __init__(self) -> None:
        self._total = 0
        self._count = 0
        self._weights: dict[torch.device, Tensor] = {}

    def add(self, name: str, tensor: "Tensor") -> None:
        """Take one whole parameter under its checkpoint name."""
        fold = self._fold(tensor)
        text = f"{name}|{tuple(tensor.shape)}|{fold}"
        digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
        self._total = (self._total + int.from_bytes(digest, "little")) & ((1 << 128) - 1)
        self._count += 1

    def hexdigest(self) -> str:
        """The checksum of everything added so far."""
        return f"{self._total:032x}-{self._count}"

    def _fold(self, tensor: "Tensor") -> int:
        with torch.no_grad():
            flat = tensor.detach().to(torch.float32).reshape(-1)
            if flat.numel() % 2:
                flat = torch.cat([flat, flat.new_zeros(1)])
            words = flat.contiguous().view(torch.int64)
            weights = self._weights.get(words.device)
            if weights is None:
                weights = self._weights.setdefault(words.device, _multipliers(_WORDS, words.device))
            sums = [words[:0]]
            whole = len(words) // _WORDS * _WORDS
            # One row at a time stays in the cache of a CPU; a device wants long launches.
            rows = 1 if words.device.type == "cpu" else _BLOCK_ROWS_DEVICE
            table = words[:whole].view(-1, _WORDS)
            for i in range(0, len(table), rows):
                sums.append((table[i : i + rows] * weights).sum(1))
            if whole < len(words):
                rest = words[whole:]
                sums.append((rest * weights[: len(rest)]).sum(0, keepdim=True))
            parts = torch.cat(sums)
            total = (parts * _multipliers(len(parts), parts.device)).sum()
            return int(total) & ((1 << 64) - 1)
