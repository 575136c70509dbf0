"""Statistics that add up over micro-batches and ranks."""

# Shape suffixes: B = rows of the micro-batch, T = response tokens (padded on the right).

import torch
from torch import Tensor

from bestiary.batch import Rows
from bestiary.ops.kl import kl_estimate
from bestiary.protocols import Stat


def masked_mean_stat(x_BT: Tensor, mask_BT: Tensor) -> Stat:
    """(sum, count) over the unmasked tokens."""
    total = x_BT.detach().masked_fill(~mask_BT, 0).sum(dtype=torch.float64)
    return Stat(float(total), float(mask_BT.sum()))


def movement(logprobs_BT: Tensor, x: Rows) -> tuple[Tensor, dict[str, Stat]]:
    """([B, T] ratio to the old policy without gradient, how far the policy has moved).

    ``kl/old`` is the mean of log π_old − log π, ``ratio/max`` the largest ratio, ``kl/rollout``
    the mean of log μ − log π_old for the engine's own log-probabilities μ.
    """
    now_BT, old_BT = logprobs_BT.detach(), x["old_logprobs"]
    ratio_BT = (now_BT - old_BT).masked_fill(~x.mask, 0).clamp(-20, 20).exp()
    largest = float(ratio_BT.masked_fill(~x.mask, 0).max()) if x.mask.any() else 0.0
    stats = {
        "kl/old": masked_mean_stat(kl_estimate(old_BT, now_BT, x.mask, kind="k1"), x.mask),
        "ratio/max": Stat(largest, 1.0, "max"),
    }
    if "rollout_logprobs" in x:
        gap_BT = kl_estimate(x["rollout_logprobs"], old_BT, x.mask, kind="k1")
        stats["kl/rollout"] = masked_mean_stat(gap_BT, x.mask)
    return ratio_BT, stats
