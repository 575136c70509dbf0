"""Weights that turn per-token losses into the loss of an optimizer step."""

# Shape suffixes: B = sequences in the batch, T = response tokens (padded on the right).

from collections.abc import Mapping
from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float, Real
from torch import Tensor

from bestiary.ops._common import Number, one_of, one_per_row, same_shape

Mode = Literal[
    "token-mean",
    "token-sum",
    "seq-mean-token-sum",
    "seq-mean-token-mean",
    "seq-mean-token-sum-norm",
]
Denominator = Literal["original", "kept"]
Reject = Bool[Tensor, "B T"] | Bool[Tensor, " B"]


def loss_weights(
    mask: Bool[Tensor, "B T"],
    *,
    mode: Mode = "token-mean",
    sample_weight: Real[Tensor, " B"] | None = None,
    reject: Reject | None = None,
    denominator: Denominator = "original",
    length_norm: Number | None = None,
    totals: Mapping[str, Number | Tensor] | None = None,
) -> Float[Tensor, "B T"]:
    """Weights w of the loss Σ w·ℓ over all tokens of an optimizer step.

    With n_i the live tokens of row i, N the rows that have any, w_it on a live token is
    "token-mean" 1/Σn, "token-sum" 1, "seq-mean-token-sum" 1/N, "seq-mean-token-mean" 1/(n_i·N),
    "seq-mean-token-sum-norm" 1/(N·L); times ``sample_weight``, and 0 where rejected.

    Σn and N are those of the whole step: give ``totals`` and micro-batches, packing and data
    parallel ranks only add up. An invalid sample has no live token, so it leaves N by itself.

    Source: token-mean DAPO, arXiv:2503.14476, eq. 8; seq-mean-token-mean GRPO, arXiv:2402.03300,
    eq. 3; constant L Dr.GRPO, arXiv:2503.20783. Rejected tokens stay in the denominator, as in
    AReaL.

    Args:
        mask: [B, T] bool, True on live tokens.
        mode: how tokens and sequences are averaged.
        sample_weight: [B], factor of each row; None is 1.
        reject: [B, T] or [B] bool, True on what gets no loss; masked positions do not matter.
        denominator: "original" counts all live tokens: ``sample_weight`` and ``reject`` change the
            numerator only. "kept" renormalises: rejected tokens are not counted, and rows count by
            their ``sample_weight``.
        length_norm: L > 0, tokens, for "seq-mean-token-sum-norm".
        totals: global "tokens" (Σn) and "sequences" (N), as ``loss_totals`` counts them with the
            same options, summed over the step; None counts this batch.

    Returns:
        [B, T] float64, exactly 0 where masked or rejected; all 0 when nothing is live.

    Raises:
        ValueError: if an option is unknown, ``length_norm`` is missing or not positive, or
            ``totals`` lacks the count that ``mode`` divides by.
    """
    one_of("mode", mode, get_args(Mode))
    if mode == "seq-mean-token-sum-norm" and not (length_norm is not None and length_norm > 0):
        raise ValueError(f"mode={mode!r} needs length_norm > 0, a constant; got {length_norm}")
    kept_BT = _kept(mask, reject)
    counted_BT = _counted(mask, kept_BT, denominator)
    factor_B = _factor(mask, sample_weight)
    if totals is None:
        totals = loss_totals(
            mask, sample_weight=sample_weight, reject=reject, denominator=denominator
        )
    divisor_B1 = torch.ones_like(factor_B).unsqueeze(-1)
    if mode == "token-mean":
        divisor_B1 = divisor_B1 * _total(totals, "tokens", mode)
    elif mode != "token-sum":
        divisor_B1 = divisor_B1 * _total(totals, "sequences", mode)
    if mode == "seq-mean-token-mean":
        divisor_B1 = divisor_B1 * counted_BT.sum(-1, keepdim=True)
    elif mode == "seq-mean-token-sum-norm" and length_norm is not None:
        divisor_B1 = divisor_B1 * length_norm
    # A zero divisor means that nothing is counted: no loss, rather than 0/0.
    weight_B1 = factor_B.unsqueeze(-1) / divisor_B1.masked_fill(divisor_B1 == 0, torch.inf)
    return torch.where(kept_BT, weight_B1, 0.0)


def loss_totals(
    mask: Bool[Tensor, "B T"],
    *,
    sample_weight: Real[Tensor, " B"] | None = None,
    reject: Reject | None = None,
    denominator: Denominator = "original",
) -> dict[str, Tensor]:
    """Count what ``loss_weights`` divides by; counts of micro-batches and ranks add up.

    Args:
        mask: [B, T] bool, True on live tokens.
        sample_weight: [B], counted with ``denominator="kept"`` only.
        reject: [B, T] or [B] bool, left out with ``denominator="kept"`` only.
        denominator: see ``loss_weights``.

    Returns:
        "tokens" and "sequences", float64 scalars.

    Raises:
        ValueError: if an option is unknown.
    """
    tokens_B = _counted(mask, _kept(mask, reject), denominator).sum(-1)
    factor_B = _factor(mask, sample_weight if denominator == "kept" else None)
    return {
        "tokens": (factor_B * tokens_B).sum(),
        "sequences": (factor_B * (tokens_B > 0)).sum(),
    }


def weighted_sum(losses: Float[Tensor, "B T"], weights: Float[Tensor, "B T"]) -> Float[Tensor, ""]:
    """Sum w·ℓ over the tokens that have a weight.

    Args:
        losses: [B, T], loss for each token, with gradient.
        weights: [B, T], see ``loss_weights``.

    Returns:
        scalar, float64 with float64 weights. A loss without weight is not read, NaN included; a
        non-finite loss with weight stays visible.
    """
    same_shape("weighted_sum", losses=losses, weights=weights)
    return (torch.where(weights != 0, losses, 0.0) * weights).sum()


def _kept(mask: Tensor, reject: Tensor | None) -> Tensor:
    if reject is None:
        return mask
    if reject.dim() == 1:
        one_per_row("loss_weights", mask.shape[0], reject=reject)
        return mask & ~reject.unsqueeze(-1)
    same_shape("loss_weights", mask=mask, reject=reject)
    return mask & ~reject


def _counted(mask: Tensor, kept_BT: Tensor, denominator: str) -> Tensor:
    one_of("denominator", denominator, get_args(Denominator))
    return kept_BT if denominator == "kept" else mask


def _factor(mask: Tensor, sample_weight: Tensor | None) -> Tensor:
    if sample_weight is None:
        return torch.ones(mask.shape[0], dtype=torch.float64, device=mask.device)
    one_per_row("loss_weights", mask.shape[0], sample_weight=sample_weight)
    # A row without live token counts nothing, and its weight may be anything, NaN included.
    return torch.where(mask.any(-1), sample_weight.double(), 0.0)


def _total(totals: Mapping[str, Number | Tensor], key: str, mode: str) -> Number | Tensor:
    if key not in totals:
        raise ValueError(f"mode={mode!r} divides by totals[{key!r}]; got {sorted(totals)}")
    return totals[key]
