"""Policy losses: thin faces of ``bestiary.ops`` with the statistics that people look at."""

# Shape suffixes: B = rows of the micro-batch, T = response tokens (padded on the right).

from collections.abc import Mapping

import torch
from torch import Tensor

from bestiary.batch import Rows
from bestiary.ops import policy as ops
from bestiary.ops.corrections import decoupled_surrogate
from bestiary.ops.masking import masked_mean
from bestiary.protocols import Configured, ModelOutput, Stat
from bestiary_losses.options import (
    CISPOOptions,
    ClipOptions,
    DecoupledOptions,
    DPPOOptions,
    DROOptions,
    GMPOOptions,
    GSPOOptions,
    SAPOOptions,
)
from bestiary_losses.stats import masked_mean_stat, movement

Loss = tuple[Tensor, Mapping[str, Stat]]


def advantages(x: Rows, like: Tensor) -> Tensor:
    """[B, T] in the dtype of the log-probabilities."""
    return x.per_token("advantages").to(like.dtype)


def outside(ratio_BT: Tensor, low: float, high: float, mask_BT: Tensor) -> Stat:
    """Share of tokens whose ratio lies outside of [1 − low, 1 + high]."""
    return masked_mean_stat(((ratio_BT < 1 - low) | (ratio_BT > 1 + high)).float(), mask_BT)


class Clip(Configured):
    """−min(ρA, clip(ρ, 1−ε_l, 1+ε_h)A) for each token, with ρ = π/π_old."""

    options: ClipOptions

    def __call__(self, now: ModelOutput, x: Rows) -> Loss:
        """Per-token loss; ``clip/fraction`` is the share of tokens outside of the range."""
        o, logprobs_BT = self.options, now.need("logprobs")
        adv_BT = advantages(x, logprobs_BT)
        loss_BT = ops.clipped_surrogate(
            logprobs_BT,
            x["old_logprobs"],
            adv_BT,
            x.mask,
            clip_low=o.clip_low,
            clip_high=o.clip_high,
            dual_clip=o.dual_clip,
        )
        ratio_BT, stats = movement(logprobs_BT, x)
        stats["clip/fraction"] = outside(ratio_BT, o.clip_low, o.clip_high, x.mask)
        if o.dual_clip is not None:
            bounded_BT = ((adv_BT < 0) & (ratio_BT > o.dual_clip)).float()
            stats["clip/dual_fraction"] = masked_mean_stat(bounded_BT, x.mask)
        return loss_BT, stats


class GSPO(Configured):
    """The clipped surrogate on the geometric mean ratio of each response."""

    options: GSPOOptions

    def __call__(self, now: ModelOutput, x: Rows) -> Loss:
        """Per-token loss; ``clip/fraction`` is the share of tokens in clipped responses."""
        o, logprobs_BT = self.options, now.need("logprobs")
        loss_BT = ops.sequence_surrogate(
            logprobs_BT,
            x["old_logprobs"],
            advantages(x, logprobs_BT),
            x.mask,
            clip_low=o.clip_low,
            clip_high=o.clip_high,
        )
        _, stats = movement(logprobs_BT, x)
        gap_BT = (logprobs_BT.detach() - x["old_logprobs"]).masked_fill(~x.mask, 0)
        ratio_B1 = masked_mean(gap_BT, x.mask, dim=-1).clamp(-20, 20).exp().unsqueeze(-1)
        ratio_BT = ratio_B1.expand(x.mask.shape)
        stats["clip/fraction"] = outside(ratio_BT, o.clip_low, o.clip_high, x.mask)
        return loss_BT, stats


class CISPO(Configured):
    """−sg[clip(ρ, 1−ε_l, 1+ε_h)]·A·log π for each token."""

    options: CISPOOptions

    def __call__(self, now: ModelOutput, x: Rows) -> Loss:
        """Per-token loss; ``clip/fraction`` is the share of tokens with a clipped weight."""
        o, logprobs_BT = self.options, now.need("logprobs")
        loss_BT = ops.cispo(
            logprobs_BT,
            x["old_logprobs"],
            advantages(x, logprobs_BT),
            x.mask,
            clip_low=o.clip_low,
            clip_high=o.clip_high,
        )
        ratio_BT, stats = movement(logprobs_BT, x)
        stats["clip/fraction"] = outside(ratio_BT, o.clip_low, o.clip_high, x.mask)
        return loss_BT, stats


class SAPO(Configured):
    """−A·(4/τ)·sigmoid(τ(ρ − 1)) for each token."""

    options: SAPOOptions

    def __call__(self, now: ModelOutput, x: Rows) -> Loss:
        """Per-token loss."""
        o, logprobs_BT = self.options, now.need("logprobs")
        loss_BT = ops.sapo(
            logprobs_BT,
            x["old_logprobs"],
            advantages(x, logprobs_BT),
            x.mask,
            tau_pos=o.tau_pos,
            tau_neg=o.tau_neg,
        )
        return loss_BT, movement(logprobs_BT, x)[1]


class GMPO(Configured):
    """−Ā·exp(mean of pessimistically clipped log ratios), the same on each token of a row."""

    options: GMPOOptions

    def __call__(self, now: ModelOutput, x: Rows) -> Loss:
        """Per-token loss; ``clip/fraction`` is the share of tokens whose log ratio is outside."""
        o, logprobs_BT = self.options, now.need("logprobs")
        loss_BT = ops.gmpo(
            logprobs_BT,
            x["old_logprobs"],
            advantages(x, logprobs_BT),
            x.mask,
            clip_low=o.clip_low,
            clip_high=o.clip_high,
        )
        ratio_BT, stats = movement(logprobs_BT, x)
        log_BT = ratio_BT.log()
        clipped_BT = ((log_BT < -o.clip_low) | (log_BT > o.clip_high)).float()
        stats["clip/fraction"] = masked_mean_stat(clipped_BT, x.mask)
        return loss_BT, stats


class Reinforce(Configured):
    """−A·log π for each token; unbiased on samples of the current policy."""

    def __call__(self, now: ModelOutput, x: Rows) -> Loss:
        """Per-token loss."""
        logprobs_BT = now.need("logprobs")
        return ops.reinforce(logprobs_BT, advantages(x, logprobs_BT), x.mask), {}


class DRO(Configured):
    """−(A·log π − β/2·d²) for each token, d = log π − log π_old (arXiv:2405.19107)."""

    options: DROOptions

    def __call__(self, now: ModelOutput, x: Rows) -> Loss:
        """Per-token loss."""
        logprobs_BT = now.need("logprobs").masked_fill(~x.mask, 0)
        gap_BT = logprobs_BT - x["old_logprobs"].masked_fill(~x.mask, 0)
        pull_BT = self.options.beta / 2 * gap_BT.square()
        loss_BT = -(advantages(x, logprobs_BT) * logprobs_BT - pull_BT)
        return loss_BT.masked_fill(~x.mask, 0), movement(logprobs_BT, x)[1]


class DPPO(Configured):
    """−A·sg[min(ρ, c)]·log π on tokens within a trust region of probabilities.

    A token whose probability is further from the old one than the threshold, and that the update
    would move further still, carries no gradient.

    Source: verl's ``dppo_tv`` and ``dppo_kl``.
    """

    options: DPPOOptions

    def __call__(self, now: ModelOutput, x: Rows) -> Loss:
        """Per-token loss; ``clip/fraction`` is the share of tokens without gradient."""
        o, logprobs_BT = self.options, now.need("logprobs").masked_fill(~x.mask, 0)
        adv_BT = advantages(x, logprobs_BT)
        old_BT = x["old_logprobs"].masked_fill(~x.mask, 0)
        with torch.no_grad():
            p_BT, q_BT = logprobs_BT.exp(), old_BT.exp()
            if o.divergence == "tv":
                far_BT = (p_BT - q_BT).abs() > o.threshold
            else:
                far_BT = _binary_kl(q_BT, p_BT) > o.threshold
            dropped_BT = far_BT & ((p_BT - q_BT) * adv_BT > 0)
        ratio_BT, stats = movement(logprobs_BT, x)
        weight_BT = ratio_BT.clamp(max=o.cap).masked_fill(dropped_BT, 0)
        loss_BT = (-adv_BT * weight_BT * logprobs_BT).masked_fill(~x.mask, 0)
        stats["clip/fraction"] = masked_mean_stat(dropped_BT.float(), x.mask)
        return loss_BT, stats


def _binary_kl(q_BT: Tensor, p_BT: Tensor) -> Tensor:
    """KL of "this token or another" under q from that under p, nats."""
    tiny = torch.finfo(q_BT.dtype).tiny
    other = (1 - q_BT).clamp(min=0)
    this_BT = q_BT * ((q_BT.clamp(min=tiny)).log() - p_BT.clamp(min=tiny).log())
    rest_BT = other * (other.clamp(min=tiny).log() - (1 - p_BT).clamp(min=tiny).log())
    return this_BT + rest_BT


class Decoupled(Configured):
    """−w·min(uA, clip(u)A), u = π/π_prox, w = π_prox/π_behaviour (arXiv:2505.24298, eq. 5)."""

    options: DecoupledOptions

    def __call__(self, now: ModelOutput, x: Rows) -> Loss:
        """Per-token loss; ``correction/capped`` is the share of tokens beyond the cap."""
        o, logprobs_BT = self.options, now.need("logprobs")
        loss_BT = decoupled_surrogate(
            logprobs_BT,
            x["old_logprobs"],
            x["rollout_logprobs"],
            advantages(x, logprobs_BT),
            x.mask,
            clip=(o.clip_low, o.clip_high),
            cap=o.cap,
            cap_mode=o.cap_mode,
        )
        ratio_BT, stats = movement(logprobs_BT, x)
        stats["clip/fraction"] = outside(ratio_BT, o.clip_low, o.clip_high, x.mask)
        if o.cap is not None:
            gap_BT = (x["old_logprobs"] - x["rollout_logprobs"]).masked_fill(~x.mask, 0)
            capped_BT = (gap_BT.clamp(-20, 20).exp() > o.cap).float()
            stats["correction/capped"] = masked_mean_stat(capped_BT, x.mask)
        return loss_BT, stats
