"""Weights of tokens from the trainer's and the engine's log-probabilities."""

# Shape suffixes: B = rows, T = response tokens (padded on the right).

from collections.abc import Mapping
from typing import cast

import torch
from torch import Tensor

from bestiary.batch import Rows
from bestiary.ops.corrections import importance_weights, rejection_mask
from bestiary.protocols import Configured, Reduce, Stat
from bestiary_corrections.options import Criterion, RejectOptions, TISOptions


def mean_stat(x_BT: Tensor, mask_BT: Tensor) -> Stat:
    """(sum, count) over the unmasked tokens."""
    return Stat(float(x_BT.double().masked_fill(~mask_BT, 0).sum()), float(mask_BT.sum()))


class TIS(Configured):
    """w = min(ρ, C), ρ = π_old/μ of a token or of a response; constant in the gradient."""

    options: TISOptions

    def __call__(self, x: Rows, reduce: Reduce) -> Mapping[str, Tensor | Stat]:
        """[B, T] ``token_weight``; the mean weight and the share of tokens at the cap."""
        o, live_BT = self.options, x.mask & x["valid"].bool()[:, None]
        weights_BT = importance_weights(
            x["old_logprobs"].double(),
            x["rollout_logprobs"].double(),
            live_BT,
            level=o.level,
            cap=o.cap,
        )
        stats = {
            "correction/capped": mean_stat((weights_BT >= o.cap).double(), live_BT),
            "correction/weight": mean_stat(weights_BT, live_BT),
        }
        if o.normalise == "mean":
            weights_BT = importance_weights(
                x["old_logprobs"].double(),
                x["rollout_logprobs"].double(),
                live_BT,
                level=o.level,
                cap=o.cap,
                normalise="mean",
                reduce=reduce,
            )
        return {"token_weight": weights_BT, **stats}


class Reject(Configured):
    """1 (or ρ) on tokens within the bounds of every criterion, 0 elsewhere."""

    options: RejectOptions

    def __call__(self, x: Rows, reduce: Reduce) -> Mapping[str, Tensor | Stat]:
        """[B, T] ``token_weight``; the share of tokens that are dropped."""
        live_BT = x.mask & x["valid"].bool()[:, None]
        old_BT, behaviour_BT = x["old_logprobs"].double(), x["rollout_logprobs"].double()
        criteria = cast("list[Criterion]", [tuple(c) for c in self.options.criteria])
        keep_BT = rejection_mask(old_BT, behaviour_BT, live_BT, criteria=criteria)
        weights_BT = keep_BT.double()
        if self.options.weighted:
            weights_BT = torch.where(
                keep_BT, importance_weights(old_BT, behaviour_BT, live_BT), 0.0
            )
        return {
            "token_weight": weights_BT,
            "correction/dropped": mean_stat((~keep_BT).double(), live_BT),
            "correction/weight": mean_stat(weights_BT, live_BT),
        }
