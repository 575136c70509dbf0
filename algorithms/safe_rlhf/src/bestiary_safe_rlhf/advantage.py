"""Advantages of reward and cost, combined before the clip."""

# Shape suffixes: B = rows, T = response tokens (padded on the right).

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from bestiary.batch import Rows
from bestiary.kit import shaped_rewards
from bestiary.ops.lagrange import combine
from bestiary.ops.masking import whiten
from bestiary.ops.returns import gae
from bestiary.protocols import Configured, Reduce, Stat
from bestiary_safe_rlhf.options import LagrangianOptions


class Lagrangian(Configured):
    """A = (A_r − λ·A_c) / (1 + λ), each by GAE on token rewards and token costs.

    r_t = 1[t=T]·R − β·k_t and c_t = 1[t=T]·C + β·k_t with k_t the KL to the reference.

    Source: Dai et al. 2023, arXiv:2310.12773, section 3.3 and appendix B, as in the authors'
    code, which combines before the clip (the paper's eq. 30 sums two clipped losses).
    """

    options: LagrangianOptions

    def __call__(
        self,
        x: Rows,
        reduce: Reduce,
        **scalars: Any,  # noqa: ANN401 - numbers and names
    ) -> Mapping[str, Tensor | Stat]:
        """[B, T] ``advantages``, ``returns`` and ``cost_returns``; ``lam`` is the multiplier."""
        o = self.options
        if o.score_clip is not None:
            bound = o.score_clip
            x = x.with_columns(
                reward=x["reward"].double().clamp(-bound, bound),
                cost=x["cost"].double().clamp(-bound, bound),
            )
        rewards_BT, stats = shaped_rewards(x, scalars)
        costs_BT, _ = shaped_rewards(x, scalars, column="cost", sign=1.0)
        reward_adv_BT, returns_BT = gae(
            rewards_BT, x["values"].double(), x.mask, gamma=o.gamma, lam=o.lam
        )
        cost_adv_BT, cost_returns_BT = gae(
            costs_BT, x["cost_values"].double(), x.mask, gamma=o.gamma, lam=o.lam
        )
        advantages_BT = combine(reward_adv_BT, cost_adv_BT, float(scalars["lam"]))
        live_BT = x.mask & x["valid"].bool()[:, None]
        if o.whiten:
            advantages_BT = whiten(advantages_BT, live_BT, reduce=reduce)
        return {
            "advantages": advantages_BT.masked_fill(~live_BT, 0),
            "returns": returns_BT,
            "cost_returns": cost_returns_BT,
            **stats,
        }
