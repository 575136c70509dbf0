"""Tokens chosen by comparing them over the whole batch: covariances, and the largest k."""

# Shape suffixes: B = rows, T = response tokens (padded on the right).

import torch
from jaxtyping import Bool, Float, Int, UInt64
from torch import Tensor

from bestiary.ops._common import Reduce
from bestiary.ops.masking import masked_mean


def advantage_covariance(
    logprobs: Float[Tensor, "B T"],
    advantages: Float[Tensor, "B T"],
    mask: Bool[Tensor, "B T"],
    *,
    reduce: Reduce | None = None,
) -> Float[Tensor, "B T"]:
    """(A − mean A)(log π − mean log π) of each token, means over all unmasked tokens.

    Source: arXiv:2505.22617, eq. 10, whose mean over tokens says how fast entropy falls. float64.

    Args:
        logprobs: of the policy.
        advantages: of the same tokens.
        mask: tokens that count.
        reduce: adds sums over the shards of a batch; None where all rows are here.
    """
    spread = [_centred(x.double(), mask, reduce) for x in (logprobs, advantages)]
    return (spread[0] * spread[1]).masked_fill(~mask, 0.0)


def _centred(x: Tensor, mask: Tensor, reduce: Reduce | None) -> Tensor:
    if reduce is None:
        return x - masked_mean(x, mask)
    total, count = reduce.sum(
        torch.stack([x.masked_fill(~mask, 0.0).sum(), mask.sum().double()])
    ).unbind()
    return x - total / count.clamp(min=1.0)


def largest(
    x: Float[Tensor, "B T"],
    mask: Bool[Tensor, "B T"],
    k: int,
    *,
    reduce: Reduce | None = None,
) -> Bool[Tensor, "B T"]:
    """The k largest unmasked values, over all shards; all of them where there are no more than k.

    Values equal to the k-th largest are all taken, so the result does not depend on an order of
    rows. Found by bisection on the bits of float64, so that shards exchange counts only.

    Args:
        x: values without NaN where unmasked.
        mask: which may be taken.
        k: how many, at least 1.
        reduce: adds counts over the shards; None where all rows are here.
    """
    if k < 1:
        raise ValueError(f"k={k}: at least 1 is wanted")
    order = _ordered(x)

    def above(bound: int) -> int:
        count = ((order >= bound) & mask).sum().double()
        return int(count if reduce is None else reduce.sum(count))

    low, high = -(2**63), 2**63 - 1  # above(low) counts all; the answer is the highest bound
    if above(low) <= k:
        return mask.clone()
    while low < high:
        middle = (low + high + 1) // 2
        if above(middle) >= k:
            low = middle
        else:
            high = middle - 1
    return (order >= low) & mask


def _ordered(x: Tensor) -> Tensor:
    """int64 in the order of the values: the bits of float64, mirrored below zero."""
    bits = (x.double() + 0.0).contiguous().view(torch.int64)  # + 0.0: one zero
    return torch.where(bits >= 0, bits, bits ^ (2**63 - 1))


def random_priority(
    keys: Int[Tensor, " B"] | UInt64[Tensor, " B"], width: int
) -> Float[Tensor, "B T"]:
    """[B, width] in [0, 1): a fixed draw for each row's key and position (splitmix64).

    It depends on nothing else, so neither on shards nor on the order of rows.
    """
    place = torch.arange(width, dtype=torch.int64, device=keys.device)
    z = keys.view(torch.int64)[:, None] + (place[None, :] + 1) * _signed(0x9E3779B97F4A7C15)
    z = (z ^ _right(z, 30)) * _signed(0xBF58476D1CE4E5B9)
    z = (z ^ _right(z, 27)) * _signed(0x94D049BB133111EB)
    return _right(z ^ _right(z, 31), 11).double() / 2.0**53


def _right(x: Tensor, bits: int) -> Tensor:
    """Logical shift of int64 to the right."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _signed(x: int) -> int:
    return x - (1 << 64) if x >= 1 << 63 else x
