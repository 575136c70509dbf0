"""Masked statistics and masks from lengths."""

# Shape suffixes: B = sequences in the batch, T = response tokens (padded on the right).

from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float, Int, Real
from torch import Tensor

from bestiary.ops._common import Number, Reduce, live, one_of, same_shape, widen

EpsMode = Literal["var_plus", "var_floor", "std_plus"]


def length_mask(lengths: Int[Tensor, " B"], max_len: int) -> Bool[Tensor, "B T"]:
    """Make the right-padded mask of sequences whose lengths the engine reported.

    mask[i, t] = t < lengths[i]. Lengths are never guessed from ids: a response that was cut has no
    end token, and a pad token may be the end token.

    Args:
        lengths: [B] int, tokens of each sequence, in [0, max_len].
        max_len: padded width T, tokens.

    Returns:
        [B, T] bool, True on the sequence's own tokens.

    Raises:
        ValueError: if a length is negative or above ``max_len``.
    """
    if bool(((lengths < 0) | (lengths > max_len)).any()):
        raise ValueError(f"lengths must lie in [0, {max_len}], got {lengths.tolist()}")
    return torch.arange(max_len, device=lengths.device) < lengths.unsqueeze(-1)


def masked_sum(
    x: Real[Tensor, "*shape"], mask: Bool[Tensor, "*shape"], *, dim: int | None = None
) -> Float[Tensor, "..."]:
    """Sum the unmasked values, over everything or along one dim.

    Args:
        x: any shape; masked values are ignored, NaN included.
        mask: same shape, bool.
        dim: dim to reduce, None for all.

    Returns:
        float32 (float64 for float64 input); 0 where nothing is unmasked.
    """
    same_shape("masked_sum", x=x, mask=mask)
    (x,) = widen(x)
    return live(x, mask).sum() if dim is None else live(x, mask).sum(dim)


def masked_mean(
    x: Real[Tensor, "*shape"], mask: Bool[Tensor, "*shape"], *, dim: int | None = None
) -> Float[Tensor, "..."]:
    """Average the unmasked values, over everything or along one dim.

    Σ m·x / Σ m, without an epsilon in the denominator.

    Args:
        x: any shape; masked values are ignored, NaN included.
        mask: same shape, bool.
        dim: dim to reduce, None for all.

    Returns:
        float32 (float64 for float64 input); 0 where nothing is unmasked.
    """
    count = mask.sum() if dim is None else mask.sum(dim)
    return masked_sum(x, mask, dim=dim) / count.clamp(min=1)


def masked_var(
    x: Real[Tensor, "*shape"], mask: Bool[Tensor, "*shape"], *, ddof: int = 1
) -> Float[Tensor, ""]:
    """Compute the variance of the unmasked values.

    Σ m·(x − mean)² / (Σ m − ddof), in two passes in float64.

    Args:
        x: any shape; masked values are ignored, NaN included.
        mask: same shape, bool.
        ddof: 1 for the unbiased variance, 0 for that of the population.

    Returns:
        scalar, float32 (float64 for float64 input); 0 with no more than ``ddof`` values, where the
        variance is not defined.
    """
    same_shape("masked_var", x=x, mask=mask)
    (x,) = widen(x)
    count, _, square = _moments(live(x.double(), mask), mask, None)
    return torch.where(count > ddof, square / (count - ddof).clamp(min=1), 0.0).to(x.dtype)


def whiten(
    x: Real[Tensor, "*shape"],
    mask: Bool[Tensor, "*shape"],
    *,
    ddof: int = 1,
    eps: Number = 1e-8,
    eps_mode: EpsMode = "var_plus",
    center: bool = True,
    reduce: Reduce | None = None,
) -> Float[Tensor, "*shape"]:
    """Scale the unmasked values to unit variance, and shift them to zero mean.

    (x − mean) / s with s = √(var + ε) ("var_plus", verl and TRL), √max(var, ε) ("var_floor",
    OpenRLHF) or √var + ε ("std_plus"). Statistics are float64 and of the unmasked values alone.

    Args:
        x: any shape; masked values are ignored, NaN included.
        mask: same shape, bool.
        ddof: 1 for the unbiased variance, 0 for that of the population (REINFORCE++).
        eps: regulariser of the deviation, > 0.
        eps_mode: where ``eps`` enters.
        center: False divides by s and leaves the mean where it is, scaled.
        reduce: sums partial sums over the shards of one global batch; called twice on every shard.

    Returns:
        same shape, float32 (float64 for float64 input), 0 where masked. With fewer than two values
        in the global batch there is no spread to scale by: they are returned as they are.

    Raises:
        ValueError: if ``eps_mode`` is unknown.
    """
    one_of("eps_mode", eps_mode, get_args(EpsMode))
    same_shape("whiten", x=x, mask=mask)
    (x,) = widen(x)
    x64 = live(x.double(), mask)
    count, mean, square = _moments(x64, mask, reduce)
    var = square / (count - ddof).clamp(min=1)
    if eps_mode == "std_plus":
        scale = var.sqrt() + eps
    else:
        scale = (var + eps if eps_mode == "var_plus" else var.clamp(min=eps)).sqrt()
    whitened = (x64 - mean if center else x64) / scale
    return live(torch.where(count >= max(2, ddof + 1), whitened, x64), mask).to(x.dtype)


def _moments(x64: Tensor, mask: Tensor, reduce: Reduce | None) -> tuple[Tensor, Tensor, Tensor]:
    """Count, mean and sum of squared deviations of the unmasked values of all shards."""
    partial = torch.stack([mask.sum().double(), x64.sum()])
    count, total = partial if reduce is None else reduce.sum(partial)
    mean = total / count.clamp(min=1)
    square = live((x64 - mean).square(), mask).sum().unsqueeze(0)
    return count, mean, (square if reduce is None else reduce.sum(square))[0]
