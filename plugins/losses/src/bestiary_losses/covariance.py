"""Losses that treat tokens of high covariance apart, so that entropy falls more slowly.

Source: Cui et al. 2025, arXiv:2505.22617. The paper and verl choose tokens in each micro-batch by
the current policy; here they are chosen once a step, over the whole batch, by the policy at its
start, so the choice does not depend on micro-batches or ranks. On the first update of a step that
is one micro-batch the two agree.
"""

# Shape suffixes: B = rows, T = response tokens (padded on the right).

from collections.abc import Mapping

from torch import Tensor

from bestiary.batch import Rows
from bestiary.ops import policy as ops
from bestiary.ops.selection import advantage_covariance, largest, random_priority
from bestiary.protocols import Configured, ModelOutput, Reduce, Stat
from bestiary_losses.options import ClipCovOptions, KLCovOptions
from bestiary_losses.policy import Loss, advantages, outside
from bestiary_losses.stats import masked_mean_stat, movement

Selected = Mapping[str, Tensor | Stat]


def _covariance(x: Rows, reduce: Reduce) -> tuple[Tensor, Tensor, int]:
    """([B, T] covariances, [B, T] tokens that count, number of those in the whole batch)."""
    live_BT = x.mask & x["valid"].bool()[:, None]
    old_BT = x["old_logprobs"]
    cov_BT = advantage_covariance(old_BT, advantages(x, old_BT), live_BT, reduce=reduce)
    return cov_BT, live_BT, int(reduce.sum(live_BT.sum().double()))


def _selected(chosen_BT: Tensor, cov_BT: Tensor, live_BT: Tensor) -> Selected:
    return {
        "selected": chosen_BT.double(),
        "covariance/selected": masked_mean_stat(chosen_BT.double(), live_BT),
        "covariance/mean": masked_mean_stat(cov_BT, live_BT),
    }


class ClipCov(Configured):
    """The clipped surrogate without the gradient of a random few tokens of high covariance."""

    options: ClipCovOptions

    def prepare(self, x: Rows, reduce: Reduce) -> Selected:
        """[B, T] ``selected``: at most ``ratio`` of the tokens, drawn from those in the range."""
        o = self.options
        cov_BT, live_BT, tokens = _covariance(x, reduce)
        fit_BT = live_BT & (cov_BT > o.cov_low) & (cov_BT < o.cov_high)
        draw_BT = random_priority(x["row_key"], x.mask.shape[1])
        chosen_BT = largest(draw_BT, fit_BT, max(1, int(o.ratio * tokens)), reduce=reduce)
        return _selected(chosen_BT, cov_BT, live_BT)

    def __call__(self, now: ModelOutput, x: Rows) -> Loss:
        """Per-token loss; ``clip/fraction`` is the share of tokens outside of the range."""
        o, logprobs_BT = self.options, now.need("logprobs")
        loss_BT = ops.clipped_surrogate(
            logprobs_BT,
            x["old_logprobs"],
            advantages(x, logprobs_BT),
            x.mask,
            clip_low=o.clip_low,
            clip_high=o.clip_high,
            dual_clip=o.dual_clip,
        )
        ratio_BT, stats = movement(logprobs_BT, x)
        stats["clip/fraction"] = outside(ratio_BT, o.clip_low, o.clip_high, x.mask)
        return loss_BT.masked_fill(x["selected"].bool(), 0.0), stats


class KLCov(Configured):
    """−ρA, plus β·|log π − log π_old| on the tokens of highest covariance."""

    options: KLCovOptions

    def prepare(self, x: Rows, reduce: Reduce) -> Selected:
        """[B, T] ``selected``: the share ``ratio`` of all tokens with the largest covariance."""
        cov_BT, live_BT, tokens = _covariance(x, reduce)
        k = max(1, int(self.options.ratio * tokens))
        return _selected(largest(cov_BT, live_BT, k, reduce=reduce), cov_BT, live_BT)

    def __call__(self, now: ModelOutput, x: Rows) -> Loss:
        """Per-token loss; the gradient of |·| at 0 is 0."""
        logprobs_BT = now.need("logprobs")
        gap_BT = (logprobs_BT - x["old_logprobs"]).masked_fill(~x.mask, 0.0)
        _, stats = movement(logprobs_BT, x)
        loss_BT = -gap_BT.exp() * advantages(x, logprobs_BT)
        penalty_BT = self.options.kl_coef * gap_BT.abs() * x["selected"].to(gap_BT.dtype)
        return (loss_BT + penalty_BT).masked_fill(~x.mask, 0.0), stats
