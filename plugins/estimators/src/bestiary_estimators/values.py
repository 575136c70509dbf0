"""Advantages and returns from a critic's values."""

# Shape suffixes: B = rows, T = response tokens (padded on the right).

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from bestiary.batch import Rows
from bestiary.kit import shaped_rewards
from bestiary.ops.masking import whiten
from bestiary.ops.returns import gae
from bestiary.ops.vtrace import vtrace
from bestiary.protocols import Configured, Reduce, Stat
from bestiary_estimators.common import bootstrap, live_tokens
from bestiary_estimators.options import GAEOptions, VTraceOptions

Made = Mapping[str, Tensor | Stat]


class GAE(Configured):
    """Generalised advantages and their returns (Schulman et al. 2016, arXiv:1506.02438, eq. 16).

    Returns are advantages plus values, before the advantages are whitened over the batch.
    """

    options: GAEOptions

    def __call__(self, x: Rows, reduce: Reduce, **scalars: Any) -> Made:  # noqa: ANN401 - as declared
        """[B, T] float64 ``advantages`` and ``returns``."""
        o = self.options
        rewards_BT, stats = shaped_rewards(x, scalars)
        advantages_BT, returns_BT = gae(
            rewards_BT,
            x["values"].double(),
            x.mask,
            gamma=o.gamma,
            lam=o.lam,
            bootstrap=bootstrap(x, o.truncated),
        )
        live_BT = live_tokens(x)
        if o.whiten:
            advantages_BT = whiten(
                advantages_BT, live_BT, ddof=o.ddof, eps=o.eps, eps_mode=o.eps_mode, reduce=reduce
            )
        advantages_BT = advantages_BT.masked_fill(~live_BT, 0)
        return {"advantages": advantages_BT, "returns": returns_BT, **stats}


class VTrace(Configured):
    """Off-policy corrected advantages and targets (arXiv:1802.01561, eq. 1, section 4.2).

    The policy is ``old_logprobs`` (the trainer's at the start of the step), the behaviour
    ``rollout_logprobs``.
    """

    options: VTraceOptions

    def __call__(self, x: Rows, reduce: Reduce, **scalars: Any) -> Made:  # noqa: ANN401 - as declared
        """[B, T] float64 ``advantages`` and ``returns`` (the targets of the values)."""
        o = self.options
        rewards_BT, stats = shaped_rewards(x, scalars)
        log_rhos_BT = x["old_logprobs"].double() - x["rollout_logprobs"].double()
        targets_BT, advantages_BT = vtrace(
            log_rhos_BT,
            rewards_BT,
            x["values"].double(),
            x.mask,
            o.gamma,
            bootstrap(x, o.truncated),
            rho_bar=o.rho_bar,
            c_bar=o.c_bar,
            rho_pg=o.rho_pg,
        )
        live_BT = live_tokens(x)
        if o.whiten:
            advantages_BT = whiten(advantages_BT, live_BT, reduce=reduce)
        rho_BT = log_rhos_BT.masked_fill(~live_BT, 0).exp()
        cut = float(((rho_BT > o.rho_bar) & live_BT).sum())
        return {
            "advantages": advantages_BT.masked_fill(~live_BT, 0),
            "returns": targets_BT,
            "vtrace/cut": Stat(cut, float(live_BT.sum())),
            **stats,
        }
