"""The shared losses: thin faces of ``bestiary.ops`` with the statistics that people look at.

Shape suffixes: B = rows of the micro-batch, T = response tokens (padded on the right).
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from bestiary.batch import Rows
from bestiary.ops.kl import kl_estimate, kl_loss
from bestiary.ops.policy import clipped_surrogate
from bestiary.ops.value import clipped_value_loss
from bestiary.protocols import Configured, ModelOutput, Stat
from bestiary_losses.options import ClipOptions, KLOptions, ValueOptions


def masked_mean_stat(x_BT: Tensor, mask_BT: Tensor) -> Stat:
    """(sum, count) over the unmasked tokens."""
    total = x_BT.detach().masked_fill(~mask_BT, 0).sum(dtype=torch.float64)
    return Stat(float(total), float(mask_BT.sum()))


def output(x: Tensor | None, name: str) -> Tensor:
    """A model output that the options declared, so the engine has made it."""
    if x is None:
        raise ValueError(f"the engine did not provide {name!r}; declare it in the loss's outputs")
    return x


class Clip(Configured):
    """−min(ρA, clip(ρ, 1−ε_l, 1+ε_h)A) for each token, with ρ = π/π_old."""

    options: ClipOptions

    def __call__(self, now: ModelOutput, x: Rows) -> tuple[Tensor, Mapping[str, Stat]]:
        """Per-token loss and how far the policy has moved."""
        o = self.options
        logprobs_BT = output(now.logprobs, "logprobs")
        old_BT = x["old_logprobs"]
        loss_BT = clipped_surrogate(
            logprobs_BT,
            old_BT,
            x.per_token("advantages").to(logprobs_BT.dtype),
            x.mask,
            clip_low=o.clip_low,
            clip_high=o.clip_high,
            dual_clip=o.dual_clip,
        )
        with torch.no_grad():
            moved_BT = (logprobs_BT - old_BT).masked_fill(~x.mask, 0)
            ratio_BT = moved_BT.clamp(-20, 20).exp()
            outside_BT = ((ratio_BT < 1 - o.clip_low) | (ratio_BT > 1 + o.clip_high)).float()
            largest = float(ratio_BT.masked_fill(~x.mask, 0).max()) if x.mask.any() else 0.0
            mismatch = {}
            if "rollout_logprobs" in x:
                gap_BT = kl_estimate(x["rollout_logprobs"], old_BT, x.mask, kind="k1")
                mismatch["kl/rollout"] = masked_mean_stat(gap_BT, x.mask)
        return loss_BT, {
            **mismatch,
            "clip/fraction": masked_mean_stat(outside_BT, x.mask),
            "kl/old": masked_mean_stat(kl_estimate(old_BT, logprobs_BT, x.mask, kind="k1"), x.mask),
            "ratio/max": Stat(largest, 1.0, "max"),
        }


class KL(Configured):
    """An estimate of KL(policy || reference) for each token."""

    options: KLOptions

    def __call__(self, now: ModelOutput, x: Rows) -> tuple[Tensor, Mapping[str, Stat]]:
        """Per-token estimate; the logged value is k3 whatever is differentiated."""
        logprobs_BT = output(now.logprobs, "logprobs")
        ref_BT = x["ref_logprobs"]
        loss_BT = kl_loss(
            logprobs_BT, ref_BT, x.mask, kind=self.options.kind, gradient=self.options.gradient
        )
        with torch.no_grad():
            k3_BT = kl_estimate(logprobs_BT, ref_BT, x.mask, kind="k3")
        return loss_BT, {"kl/reference": masked_mean_stat(k3_BT, x.mask)}


class Entropy(Configured):
    """Minus the entropy for each token."""

    def __call__(self, now: ModelOutput, x: Rows) -> tuple[Tensor, Mapping[str, Stat]]:
        """Per-token negative entropy in nats."""
        entropy_BT = output(now.entropy, "entropy")
        return -entropy_BT, {"entropy": masked_mean_stat(entropy_BT, x.mask)}


class NLL(Configured):
    """−log π(y_t | x, y_<t) for each token."""

    def __call__(self, now: ModelOutput, x: Rows) -> tuple[Tensor, Mapping[str, Stat]]:
        """Per-token negative log-likelihood in nats."""
        return -output(now.logprobs, "logprobs"), {}


class Value(Configured):
    """½·max((V−R)², (clip(V, V_old±ε)−R)²) for each token."""

    options: ValueOptions

    def __call__(self, now: ModelOutput, x: Rows) -> tuple[Tensor, Mapping[str, Stat]]:
        """Per-token squared error."""
        values_BT = output(now.values, "values")
        returns_BT = x["returns"].to(values_BT.dtype)
        loss_BT = clipped_value_loss(
            values_BT,
            x["values"].to(values_BT.dtype),
            returns_BT,
            x.mask,
            clip=self.options.clip,
        )
        error_BT = (values_BT - returns_BT).abs()
        return loss_BT, {"value/error": masked_mean_stat(error_BT, x.mask)}
