"""Corrections for samples that another policy, or another engine's arithmetic, produced."""

# Shape suffixes: B = sequences in the batch, T = response tokens (padded on the right).

import math
from collections.abc import Sequence
from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from bestiary.ops._common import Number, Reduce, exp_ratio, live, one_of, same_shape, widen
from bestiary.ops.masking import masked_mean, masked_sum
from bestiary.ops.policy import clipped_surrogate

Level = Literal["token", "sequence", "geometric"]
Normalise = Literal["mean"]
Criterion = Literal["token", "sequence", "geometric", "veto"]
CapMode = Literal["truncate", "mask"]


def importance_weights(
    train_logprobs: Float[Tensor, "B T"],
    behaviour_logprobs: Float[Tensor, "B T"],
    mask: Bool[Tensor, "B T"],
    *,
    level: Level = "token",
    cap: Number | None = None,
    normalise: Normalise | None = None,
    reduce: Reduce | None = None,
) -> Float[Tensor, "B T"]:
    """Weigh samples of the behaviour policy as if the trained policy had produced them.

    w = min(ρ, C), with ρ the ratio of each token ("token"), the product of the row's ratios
    ("sequence") or their geometric mean ("geometric"); the last two are the same on each token of
    a row.

    Source: truncated importance sampling, Ionides 2008, doi:10.1198/106186008X320456; for the
    mismatch of training and inference engines Yao et al. 2025,
    fengyao.notion.site/off-policy-rl.

    Args:
        train_logprobs: [B, T], log-probabilities by the trainer, nats.
        behaviour_logprobs: [B, T], those that the tokens were sampled with.
        mask: [B, T] bool, True on the tokens that count.
        level: what one ratio belongs to.
        cap: C > 0; None is no cap but e^20, where the exponent is cut.
        normalise: "mean" divides by the mean weight of the batch, over tokens for "token" and over
            sequences otherwise, after the cap.
        reduce: sums partial sums over the shards of one global batch, for ``normalise``; called
            once on every shard.

    Returns:
        [B, T] float32 (float64 if an input is), detached, exactly 0 where masked.

    Raises:
        ValueError: if an option is unknown or ``cap`` is not positive.
    """
    one_of("level", level, get_args(Level))
    if cap is not None and not cap > 0:
        raise ValueError(f"cap must be positive, or None for none; got {cap}")
    if normalise is not None:
        one_of("normalise", normalise, get_args(Normalise))
    log_ratio_BT = _log_ratio("importance_weights", train_logprobs, behaviour_logprobs, mask)
    ratio_BT = exp_ratio(_at_level(log_ratio_BT, mask, level))
    weights_BT = live(ratio_BT if cap is None else ratio_BT.clamp(max=cap), mask)
    if normalise is None:
        return weights_BT
    counted_BT = mask if level == "token" else mask & (mask.cumsum(-1) == 1)
    partial = torch.stack([live(weights_BT, counted_BT).double().sum(), counted_BT.double().sum()])
    total, count = partial if reduce is None else reduce.sum(partial)
    # All weights 0 (underflow) or no token: there is no mean to divide by.
    scale = torch.where(total > 0, count / total.masked_fill(total == 0, 1.0), 1.0)
    return weights_BT * scale.to(weights_BT.dtype)


def rejection_mask(
    train_logprobs: Float[Tensor, "B T"],
    behaviour_logprobs: Float[Tensor, "B T"],
    mask: Bool[Tensor, "B T"],
    *,
    criteria: Sequence[tuple[Criterion, Number | None, Number | None]],
) -> Bool[Tensor, "B T"]:
    """Keep the tokens whose ratio lies within every criterion's bounds.

    A criterion is (kind, lo, hi) and keeps where lo ≤ ρ ≤ hi, both inclusive, None for no bound:
    "token" judges each token by its own ratio (IcePop), "sequence" each row by the product of its
    ratios, "geometric" by their geometric mean, "veto" drops a row of which any token is outside.
    Compared in log space, so a long sequence cannot overflow.

    Source: Liu et al. 2025, "When Speed Kills Stability" (masked importance sampling).

    Args:
        train_logprobs: [B, T], log-probabilities by the trainer, nats.
        behaviour_logprobs: [B, T], those that the tokens were sampled with.
        mask: [B, T] bool, True on the tokens that count.
        criteria: all of them must hold; none keeps everything.

    Returns:
        [B, T] bool, False where masked. The loss uses weight·keep, and its denominator stays that
        of the full batch unless it is told otherwise. A NaN ratio is not kept.

    Raises:
        ValueError: if a kind is unknown or its bounds are negative or crossed.
    """
    log_ratio_BT = _log_ratio("rejection_mask", train_logprobs, behaviour_logprobs, mask)
    keep_BT = mask
    for kind, low, high in criteria:
        one_of("criterion", kind, get_args(Criterion))
        log_low, log_high = _log_bounds(kind, low, high)
        judged_BT = _at_level(log_ratio_BT, mask, kind)
        inside_BT = (judged_BT >= log_low) & (judged_BT <= log_high)
        if kind == "veto":
            inside_BT = (inside_BT | ~mask).all(-1, keepdim=True)
        keep_BT = keep_BT & inside_BT
    return keep_BT


def decoupled_surrogate(
    logprobs: Float[Tensor, "B T"],
    proximal_logprobs: Float[Tensor, "B T"],
    behaviour_logprobs: Float[Tensor, "B T"],
    advantages: Float[Tensor, "B T"] | Float[Tensor, " B"],
    mask: Bool[Tensor, "B T"] | None = None,
    *,
    clip: Number | tuple[Number, Number] = 0.2,
    cap: Number | None = None,
    cap_mode: CapMode | None = "truncate",
) -> Float[Tensor, "B T"]:
    """Clip around a proximal policy while importance weighting from the behaviour policy.

    ℓ = −w·min(u·A, clip(u, 1 − ε, 1 + ε)·A),  u = π/π_prox,  w = π_prox/π_behaviour, detached.

    Source: Hilton et al. 2021, arXiv:2110.00641; AReaL, arXiv:2505.24298, eq. 5, from where the cap
    of w comes. With π_prox = π_behaviour it is PPO's loss.

    Args:
        logprobs: [B, T], log π of the sampled tokens, nats, with gradient.
        proximal_logprobs: [B, T], those of the policy that the step started from.
        behaviour_logprobs: [B, T], those that the tokens were sampled with.
        advantages: [B, T], or [B] for one value a sequence.
        mask: [B, T] bool, True on the tokens that count; None takes all.
        clip: ε, or (ε_low, ε_high).
        cap: bound C > 0 of w; None is none.
        cap_mode: "truncate" uses min(w, C); "mask" gives tokens with w > C no loss (they stay in
            the denominator); None does not cap.

    Returns:
        [B, T] float32 (float64 if an input is), exactly 0 where masked.

    Raises:
        ValueError: if an option is out of bounds.
    """
    if cap_mode is not None:
        one_of("cap_mode", cap_mode, get_args(CapMode))
    if cap is not None and not cap > 0:
        raise ValueError(f"cap must be positive, or None for none; got {cap}")
    low, high = clip if isinstance(clip, tuple) else (clip, clip)
    loss_BT = clipped_surrogate(
        logprobs, proximal_logprobs, advantages, mask, clip_low=low, clip_high=high
    )
    weight_BT = exp_ratio(
        _log_ratio("decoupled_surrogate", proximal_logprobs, behaviour_logprobs, mask)
    )
    if cap is not None and cap_mode == "truncate":
        weight_BT = weight_BT.clamp(max=cap)
    elif cap is not None and cap_mode == "mask":
        weight_BT = torch.where(weight_BT > cap, 0.0, weight_BT)
    return weight_BT * loss_BT


def _log_ratio(op: str, numerator: Tensor, denominator: Tensor, mask: Tensor | None) -> Tensor:
    same_shape(op, train_logprobs=numerator, behaviour_logprobs=denominator, mask=mask)
    numerator, denominator = widen(numerator.detach(), denominator.detach())
    return live(numerator - denominator, mask)


def _at_level(log_ratio_BT: Tensor, mask: Tensor, level: str) -> Tensor:
    if level == "sequence":
        row_B = masked_sum(log_ratio_BT, mask, dim=-1)
    elif level == "geometric":
        row_B = masked_mean(log_ratio_BT, mask, dim=-1)
    else:
        return log_ratio_BT
    return row_B.unsqueeze(-1).expand_as(log_ratio_BT)


def _log_bounds(kind: str, low: Number | None, high: Number | None) -> tuple[float, float]:
    at_least = 0.0 if low is None else low
    at_most = math.inf if high is None else high
    if not 0 <= at_least <= at_most:
        raise ValueError(f"criterion {kind!r} needs bounds 0 <= lo <= hi, got {low} and {high}")
    return _log(at_least), _log(at_most)


def _log(x: Number) -> float:
    return math.log(x) if x > 0 else -math.inf
