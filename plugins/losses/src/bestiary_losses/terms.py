"""Terms beside the policy loss: KL, entropy, likelihood and the critic's error.

Shape suffixes: B = rows of the micro-batch, T = response tokens (padded on the right).
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from bestiary.batch import Rows
from bestiary.ops.kl import kl_estimate, kl_loss
from bestiary.ops.value import clipped_value_loss
from bestiary.protocols import Configured, ModelOutput, Stat
from bestiary_losses.options import KLOptions, ValueOptions
from bestiary_losses.stats import masked_mean_stat


class KL(Configured):
    """An estimate of KL(policy || reference) for each token."""

    options: KLOptions

    def __call__(self, now: ModelOutput, x: Rows) -> tuple[Tensor, Mapping[str, Stat]]:
        """Per-token estimate; the logged value is k3 whatever is differentiated."""
        logprobs_BT = now.need("logprobs")
        ref_BT = x["ref_logprobs"]
        o = self.options
        loss_BT = kl_loss(
            logprobs_BT,
            ref_BT,
            x.mask,
            kind=o.kind,
            gradient=o.gradient,
            clamp=o.clamp,
            old_logprobs=x.get("old_logprobs"),
        )
        with torch.no_grad():
            k3_BT = kl_estimate(logprobs_BT, ref_BT, x.mask, kind="k3")
        return loss_BT, {"kl/reference": masked_mean_stat(k3_BT, x.mask)}


class KLFull(Configured):
    """Σ_a π(a)·log(π(a)/π_ref(a)) at each token, where the estimates see the drawn token only."""

    def __call__(self, now: ModelOutput, x: Rows) -> tuple[Tensor, Mapping[str, Stat]]:
        """Per-token KL in nats."""
        kl_BT = now.need("kl")
        return kl_BT, {"kl/reference": masked_mean_stat(kl_BT, x.mask)}


class Entropy(Configured):
    """Minus the entropy for each token."""

    def __call__(self, now: ModelOutput, x: Rows) -> tuple[Tensor, Mapping[str, Stat]]:
        """Per-token negative entropy in nats."""
        entropy_BT = now.need("entropy")
        return -entropy_BT, {"entropy": masked_mean_stat(entropy_BT, x.mask)}


class NLL(Configured):
    """−log π(y_t | x, y_<t) for each token."""

    def __call__(self, now: ModelOutput, x: Rows) -> tuple[Tensor, Mapping[str, Stat]]:
        """Per-token negative log-likelihood in nats."""
        return -now.need("logprobs"), {}


class Value(Configured):
    """½·max((V−R)², (clip(V, V_old±ε)−R)²) for each token."""

    options: ValueOptions

    def __call__(self, now: ModelOutput, x: Rows) -> tuple[Tensor, Mapping[str, Stat]]:
        """Per-token squared error."""
        values_BT = now.need("values")
        returns_BT = x["returns"].to(values_BT.dtype)
        loss_BT = clipped_value_loss(
            values_BT,
            x["values"].to(values_BT.dtype),
            returns_BT,
            x.mask,
            clip=self.options.clip,
        )
        moved_BT = (values_BT.detach() - x["values"]).abs()
        stats = {
            "value/error": masked_mean_stat((values_BT - returns_BT).abs(), x.mask),
            "value/mean": masked_mean_stat(values_BT, x.mask),
            "value/returns": masked_mean_stat(returns_BT, x.mask),
        }
        if self.options.clip is not None:
            outside_BT = (moved_BT > self.options.clip).float()
            stats["value/clip_fraction"] = masked_mean_stat(outside_BT, x.mask)
        return loss_BT, stats
