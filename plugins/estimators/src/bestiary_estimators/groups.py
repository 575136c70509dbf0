"""Advantages of whole responses against their group."""

# Shape suffixes: B = rows, T = response tokens (padded on the right).

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from bestiary.batch import Rows
from bestiary.ops.groups import group_advantages
from bestiary.ops.masking import whiten
from bestiary.protocols import Configured, Reduce, Stat
from bestiary_estimators.common import live_tokens, sequence_rewards
from bestiary_estimators.options import (
    GDPOOptions,
    GPGOptions,
    GroupOptions,
    OPOOptions,
    PassAtKOptions,
    RLOOOptions,
)

Made = Mapping[str, Tensor | Stat]


def whiten_samples(x_B: Tensor, x: Rows, reduce: Reduce, eps: float) -> Tensor:
    """(a − mean)/(std + ε) over the valid samples of the batch; each response counts once."""
    return whiten(x_B, x["valid"].bool(), eps=eps, eps_mode="std_plus", reduce=reduce)


class GroupRelative(Configured):
    """Each reward against its group, one number for the whole response.

    Invalid samples stay out of the statistics and get 0; so does a group of equal rewards.
    """

    options: GroupOptions

    def __call__(self, x: Rows, reduce: Reduce, **scalars: Any) -> Made:  # noqa: ANN401 - as declared
        """[B] float64 advantages from the sample columns ``reward``, ``group`` and ``valid``."""
        o = self.options
        advantages_B = group_advantages(
            x["reward"],
            x["group"],
            baseline=o.baseline,
            scale=o.scale,
            ddof=o.ddof,
            eps=o.eps,
            singleton=o.singleton,
            valid=x["valid"],
            lengths=x["response_len"],
        )
        return {"advantages": advantages_B}


class RLOO(Configured):
    """A_i = R_i − mean of the others = k/(k−1)·(R_i − mean), the KL of the response inside R.

    Source: Ahmadian et al. 2024, arXiv:2402.14740, eq. 8.
    """

    options: RLOOOptions

    def __call__(self, x: Rows, reduce: Reduce, **scalars: Any) -> Made:  # noqa: ANN401 - as declared
        """[B] float64 advantages."""
        rewards_B, stats = sequence_rewards(x, scalars)
        advantages_B = group_advantages(
            rewards_B,
            x["group"],
            baseline="leave_one_out",
            singleton=self.options.singleton,
            valid=x["valid"].bool(),
        )
        if self.options.whiten == "sample":
            advantages_B = whiten_samples(advantages_B, x, reduce, self.options.whiten_eps)
        return {"advantages": advantages_B, **stats}


class OPO(Configured):
    """A_i = R_i − Σ l·R / Σ l over the group, l the lengths: the optimal baseline where the
    squared score of a response is proportional to its length.

    Source: Hao et al. 2025, arXiv:2505.23585, eq. 5.
    """  # noqa: D205 - one sentence with its condition

    options: OPOOptions

    def __call__(self, x: Rows, reduce: Reduce, **scalars: Any) -> Made:  # noqa: ANN401 - as declared
        """[B] float64 advantages."""
        rewards_B, stats = sequence_rewards(x, scalars)
        advantages_B = group_advantages(
            rewards_B,
            x["group"],
            baseline="length_weighted",
            singleton=self.options.singleton,
            valid=x["valid"].bool(),
            lengths=x.mask.sum(-1),
        )
        return {"advantages": advantages_B, **stats}


class GPG(Configured):
    """A_i = α·(R_i − mean)/F, α = samples / samples whose reward is not 0, over the batch.

    Source: Chu et al. 2025, arXiv:2504.02546, eq. 8, with α as in verl: the paper counts groups
    without a gradient, verl counts rewards that are 0.
    """

    options: GPGOptions

    def __call__(self, x: Rows, reduce: Reduce, **scalars: Any) -> Made:  # noqa: ANN401 - as declared
        """[B] float64 advantages."""
        rewards_B, stats = sequence_rewards(x, scalars)
        valid_B = x["valid"].bool()
        counts = torch.stack([valid_B.sum(), (valid_B & (rewards_B != 0)).sum()]).double()
        every, nonzero = reduce.sum(counts)
        advantages_B = group_advantages(
            rewards_B, x["group"], singleton=self.options.singleton, valid=valid_B
        )
        alpha = every / nonzero.clamp(min=1.0)
        return {"advantages": advantages_B * alpha / self.options.f_norm, **stats}


class PassAtK(Configured):
    """The best of a group gets (best − second best)/(std + ε), all others 0; a tie gives 0.

    Source: verl's ``grpo_passk``; a group of one, which verl refuses, gets 0.
    """

    options: PassAtKOptions

    def __call__(self, x: Rows, reduce: Reduce, **scalars: Any) -> Made:  # noqa: ANN401 - as declared
        """[B] float64 advantages."""
        o = self.options
        rewards_B, valid_B = x["reward"].double(), x["valid"].bool()
        out_B = torch.zeros_like(rewards_B)
        for group in sorted(set(x["group"][valid_B].tolist())):
            rows = torch.nonzero(valid_B & (x["group"] == group))[:, 0]
            if len(rows) < 2:
                continue
            first, second = rewards_B[rows].topk(2).values
            std = rewards_B[rows].std(correction=o.ddof) if o.scale else torch.ones(())
            best = rows[rewards_B[rows].argmax()]
            out_B[best] = (first - second) / (std + o.eps if o.scale else std)
        return {"advantages": out_B}


class GDPO(Configured):
    """A = whiten(Σ_k w_k·(r_k − mean_g r_k)/(std_g r_k + ε)) over the parts k of the reward.

    Normalised apart, a part with a small range is not drowned by one with a large range.
    Source: arXiv:2601.05242, as in verl; parts come from the scorer's ``Score.parts``.
    """

    options: GDPOOptions

    def __call__(self, x: Rows, reduce: Reduce, **scalars: Any) -> Made:  # noqa: ANN401 - as declared
        """[B, T] float64 advantages.

        Raises:
            ValueError: if valid samples have no parts, or a weight names a part that none has.
        """
        o, valid_B = self.options, x["valid"].bool()
        parts = x.text["parts"]
        names = sorted({name for part, v in zip(parts, valid_B, strict=True) if v for name in part})
        if bool(valid_B.any()) and not names:
            raise ValueError(
                "gdpo compares the parts of a reward, and this one has none; use a reward that "
                "returns Score(value, parts={…})"
            )
        total_B = torch.zeros(x.size, dtype=torch.float64)
        for name in names:
            has_B = torch.tensor([name in part for part in parts]) & valid_B
            values_B = torch.tensor([float(part.get(name, 0.0)) for part in parts]).double()
            total_B += o.weights.get(name, 1.0) * group_advantages(
                values_B, x["group"], scale="std", ddof=o.ddof, eps=o.eps, valid=has_B
            )
        wide_BT = total_B[:, None].expand(x.mask.shape)
        live_BT = live_tokens(x)
        if o.whiten == "sample":
            return {"advantages": whiten_samples(total_B, x, reduce, o.whiten_eps)}
        if o.whiten == "token":
            return {"advantages": whiten(wide_BT, live_BT, reduce=reduce)}
        return {"advantages": wide_BT.masked_fill(~live_BT, 0)}
