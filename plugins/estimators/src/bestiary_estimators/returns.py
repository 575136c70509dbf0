"""Advantages from rewards to go, without a critic."""

# Shape suffixes: B = rows, T = response tokens (padded on the right).

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from bestiary.batch import Rows
from bestiary.kit import shaped_rewards
from bestiary.ops.groups import group_advantages
from bestiary.ops.masking import whiten
from bestiary.ops.returns import discounted_returns, terminal_rewards
from bestiary.protocols import Configured, Reduce, Stat
from bestiary_estimators.common import live_tokens
from bestiary_estimators.options import (
    OTBOptions,
    ProcessOptions,
    ReinforcePPBaselineOptions,
    ReinforcePPOptions,
    ReMaxOptions,
    ReturnOptions,
)

Made = Mapping[str, Tensor | Stat]


class Returns(Configured):
    """A_t = G_t, the rewards to go with the KL to go inside (Williams 1992)."""

    options: ReturnOptions

    def __call__(self, x: Rows, reduce: Reduce, **scalars: Any) -> Made:  # noqa: ANN401 - as declared
        """[B, T] float64 advantages."""
        rewards_BT, stats = shaped_rewards(x, scalars)
        return {
            "advantages": discounted_returns(rewards_BT, x.mask, gamma=self.options.gamma),
            **stats,
        }


class ReinforcePP(Configured):
    """A_t = whiten(r − β·Σ_{i ≥ t} KL_i) over the tokens of the global batch.

    Source: Hu 2025, arXiv:2501.03262, eq. 5 to 7.
    """

    options: ReinforcePPOptions

    def __call__(self, x: Rows, reduce: Reduce, **scalars: Any) -> Made:  # noqa: ANN401 - as declared
        """[B, T] float64 advantages."""
        rewards_BT, stats = shaped_rewards(x, scalars)
        return {"advantages": self._whitened(rewards_BT, x, reduce), **stats}

    def _whitened(self, rewards_BT: Tensor, x: Rows, reduce: Reduce) -> Tensor:
        o = self.options
        returns_BT = discounted_returns(rewards_BT, x.mask, gamma=o.gamma)
        return whiten(
            returns_BT,
            live_tokens(x),
            ddof=o.ddof,
            eps=o.eps,
            eps_mode=o.eps_mode,
            reduce=reduce,
        )


class ReinforcePPBaseline(ReinforcePP):
    """As REINFORCE++, with the group's mean taken off each reward first; a group of one gets 0.

    Source: Hu 2025, arXiv:2501.03262, section 3.3.
    """

    options: ReinforcePPBaselineOptions

    def __call__(self, x: Rows, reduce: Reduce, **scalars: Any) -> Made:  # noqa: ANN401 - as declared
        """[B, T] float64 advantages."""
        rewards_BT, stats = shaped_rewards(x, scalars)
        reward_B, valid_B = x["reward"].double(), x["valid"].bool()
        centred_B = group_advantages(
            reward_B, x["group"], singleton=self.options.singleton, valid=valid_B
        )
        moved_B = (centred_B - reward_B).masked_fill(~valid_B, 0)
        rewards_BT = rewards_BT + terminal_rewards(moved_B, x.mask)
        return {"advantages": self._whitened(rewards_BT, x, reduce), **stats}


class ReMax(Configured):
    """A_t = γ^(T−t+1)·clip(r − r_greedy) − β·KL, each token's own KL or the KL to go.

    Source: Li et al. 2023, arXiv:2310.10505, eq. 8, and its code (``remax_trainer.py``), where
    the KL is one-step, the clip is on the difference, and the last token is discounted once.
    """

    options: ReMaxOptions

    def __call__(self, x: Rows, reduce: Reduce, **scalars: Any) -> Made:  # noqa: ANN401 - as declared
        """[B, T] float64 advantages."""
        o, live_BT = self.options, live_tokens(x)
        gap_B = x["reward"].double() - x["baseline_reward"].double()
        if o.clip is not None:
            gap_B = gap_B.clamp(-o.clip, o.clip)
        ahead_BT = live_BT.flip(-1).cumsum(-1).flip(-1)
        advantages_BT = gap_B[:, None] * torch.pow(o.gamma, ahead_BT.double())
        nothing = x.with_columns(reward=torch.zeros_like(gap_B))
        kl_BT, stats = shaped_rewards(nothing, scalars)
        if o.kl == "accumulated":
            kl_BT = discounted_returns(kl_BT, x.mask, gamma=o.gamma)
        advantages_BT = (advantages_BT + kl_BT).masked_fill(~live_BT, 0)
        return {"advantages": advantages_BT, **stats}


class Process(Configured):
    """A_t = G_t − mean of G_t over the group at token t, G the process rewards to go."""

    options: ProcessOptions

    def __call__(self, x: Rows, reduce: Reduce, **scalars: Any) -> Made:  # noqa: ANN401 - as declared
        """[B, T] float64 advantages."""
        rewards_BT, stats = shaped_rewards(x, scalars)
        togo_BT = discounted_returns(rewards_BT, x.mask, gamma=self.options.gamma)
        live_BT = live_tokens(x)
        if self.options.baseline == "mean":
            weight_BT = live_BT.double()
            togo_BT = togo_BT - _group_mean(togo_BT, weight_BT, x["group"], 0.0)
        return {"advantages": togo_BT.masked_fill(~live_BT, 0), **stats}


class OTB(Configured):
    """A_t = G_t − Σ_i W_it·G_it / Σ_i W_it over the group: the baseline of least variance.

    W_t = Σ_{j ≤ t} (1 − 2π_j + Σ_a π_j(a)²) is the squared score up to token t, so the weighted
    mean has the least variance. Where one response of the group is alone (a group of one, the end
    of the longest) there is nothing to compare with and A is G.

    Source: verl's ``optimal_token_baseline``.
    """

    options: OTBOptions

    def __call__(self, x: Rows, reduce: Reduce, **scalars: Any) -> Made:  # noqa: ANN401 - as declared
        """[B, T] float64 advantages.

        Raises:
            KeyError: if ``rho_squared`` is set and the batch has no ``rollout_logprobs``.
        """
        rewards_BT, stats = shaped_rewards(x, scalars)
        togo_BT, live_BT = discounted_returns(rewards_BT, x.mask), live_tokens(x)
        old_BT = x["old_logprobs"].double()
        score_BT = 1.0 - 2.0 * old_BT.exp() + x["probs_squared"].double()
        if self.options.rho_squared:
            score_BT = score_BT * (2.0 * (old_BT - x["rollout_logprobs"].double())).exp()
        weight_BT = score_BT.masked_fill(~live_BT, 0).cumsum(-1).masked_fill(~live_BT, 0)
        baseline_BT = _group_mean(togo_BT, weight_BT, x["group"], 1e-8)
        out_BT = togo_BT - baseline_BT
        for group in sorted(set(x["group"].tolist())):
            rows_B = x["group"] == group
            alone_BT = rows_B[:, None] & (live_BT[rows_B].sum(0) == 1)[None, :]
            out_BT = torch.where(alone_BT, togo_BT, out_BT)
        return {"advantages": out_BT.masked_fill(~live_BT, 0), **stats}


def _group_mean(x_BT: Tensor, weight_BT: Tensor, group_B: Tensor, eps: float) -> Tensor:
    """[B, T] weighted means over the rows of each group at each token; 0 where nothing weighs."""
    out_BT = torch.zeros_like(x_BT)
    for group in sorted(set(group_B.tolist())):
        rows_B = group_B == group
        total_T = weight_BT[rows_B].sum(0) + eps
        mean_T = (weight_BT[rows_B] * x_BT[rows_B]).sum(0) / total_T.masked_fill(total_T == 0, 1.0)
        out_BT[rows_B] = mean_T
    return out_BT
