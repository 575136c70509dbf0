"""Prompts by priority."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bestiary.batch import Batch
from bestiary.errors import ConfigError, NumericalError
from bestiary.protocols import Prompts
from bestiary_samplers.groups import counted_rows
from bestiary_samplers.options import PrioritisedOptions
from bestiary_samplers.systematic import systematic

_SOURCES = {
    "td_error": "a critic, as in algorithm=ppo, and an estimator that makes returns",
    "advantage": "an advantage estimator",
    "kl": "the policy at the start of the step, which algorithms compute when they make several "
    "updates a step (algorithm.minibatches=2) or when a correction reads it",
    "reward_variance": "a reward",
}


class Prioritised:
    """Draws prompts with P = (1 − u)·(p + ε)^α / Σ (p + ε)^α + u/N.

    A draw of n has each prompt ⌊n·P⌋ or ⌈n·P⌉ times and n·P times on average (systematic
    sampling), so it has no prompt twice unless n·P is above 1. The importance weights
    (N·P)^−β, divided by their maximum over the draw, go into the sample column ``sample_weight``,
    which multiplies the loss of the prompt's responses; β rises to 1, where Σ wᵢ·lossᵢ is
    proportional to that of uniform draws on average. A prompt that was not seen yet has the
    largest priority so far, one without any counted response the lowest.

    Source: Schaul et al. 2016, arXiv:1511.05952, eq. 1, section 3.4 and appendix B.2.1; differs
    from it in that a prompt with its group takes the place of a transition, in the share u, and in
    drawing one offset for all n strata instead of one in each, so that a draw repeats nothing.

    Args:
        options: what the priority is, and how strongly it counts.
        source: the prompts.
    """

    def __init__(self, options: PrioritisedOptions, source: Prompts) -> None:
        self.options = options
        self.source = source
        self._uids = list(source.uids)
        self._place = {uid: i for i, uid in enumerate(self._uids)}
        self.priority = np.full(len(self._uids), np.nan)
        """[N] of each prompt; NaN where it was not seen yet."""
        self._draws = 0
        self._steps = 0
        self._drawn = 0
        self._repeated = 0

    @property
    def beta(self) -> float:
        """The exponent of the importance weights now."""
        o = self.options
        if o.beta == 0.0:
            return 0.0
        return o.beta + (1.0 - o.beta) * min(1.0, self._steps / o.beta_steps)

    def chances(self) -> NDArray[np.float64]:
        """[N] the probability P of each prompt."""
        o = self.options
        seen = self.priority[~np.isnan(self.priority)]
        fresh = float(seen.max()) if len(seen) else 1.0
        weight = (np.nan_to_num(self.priority, nan=fresh) + o.epsilon) ** o.alpha
        share = weight / weight.sum()
        return np.asarray((1.0 - o.uniform) * share + o.uniform / len(share))

    def draw(self, n: int) -> Batch:
        """``n`` prompts, with the sample column ``sample_weight``."""
        chances, count = self.chances(), len(self._uids)
        rng = np.random.default_rng([self.source.seed & 0xFFFF_FFFF_FFFF_FFFF, self._draws])
        self._draws += 1
        chosen = systematic(chances, n, rng)
        self._drawn += n
        self._repeated += n - len(np.unique(chosen))
        weight = (count * chances[chosen]) ** -self.beta
        return self.source.hand_out(chosen).with_columns(
            sample_weight=weight / weight.max(initial=0.0)
        )

    def accept(self, groups: Batch) -> tuple[Batch, int]:
        """All groups; nothing more is needed."""
        return groups, 0

    def observe(self, batch: Batch) -> None:
        """Take the new priority of each prompt in a finished batch.

        Raises:
            ConfigError: if the algorithm does not make the columns of this priority.
            NumericalError: if a priority is not finite.
        """
        o = self.options
        missing = sorted(name for name in o.requires if name not in batch)
        if missing:
            raise ConfigError(
                f"sampler=prioritised by={o.by} reads the columns {', '.join(missing)}, which the "
                f"batch that was learned from does not have; they come from {_SOURCES[o.by]}",
                hint="choose another sampler.by",
            )
        self._steps += 1
        counted = counted_rows(batch)
        rows = batch.take(np.flatnonzero(counted))
        found, uids = self._of_rows(rows), rows["uid"]
        for uid in dict.fromkeys(batch["uid"]):
            mine = found[uids == uid]
            value = 0.0
            if len(mine):
                value = float(mine.var() if o.by == "reward_variance" else mine.mean())
            if not np.isfinite(value):
                raise NumericalError(
                    f"sampler=prioritised by={o.by}: the priority of {uid!r} is {value}",
                    hint="the run has diverged; look at the losses of this step",
                )
            if uid in self._place:
                self.priority[self._place[uid]] = value

    def _of_rows(self, rows: Batch) -> NDArray[np.float64]:
        """[B] what the priority is taken from."""
        by = self.options.by
        if by == "reward_variance":
            return rows["reward"].astype(np.float64)
        if by == "td_error":
            return _gap(rows, "returns", "values")
        if by == "kl":
            return _gap(rows, "old_logprobs", "rollout_logprobs")
        if "advantages" in rows.columns:
            return _gap(rows, "advantages", "")
        return np.abs(rows["advantages"].astype(np.float64))

    def metrics(self) -> dict[str, float]:
        """Prompts seen, their mean priority, β, and the share of repeats within draws so far."""
        seen = self.priority[~np.isnan(self.priority)]
        return {
            "sampler/seen": float(len(seen)),
            "sampler/priority": float(seen.mean()) if len(seen) else float("nan"),
            "sampler/beta": self.beta,
            "sampler/repeated": self._repeated / self._drawn if self._drawn else 0.0,
        }

    def state_dict(self) -> dict[str, Any]:
        """Priorities by uid, and the counters that the draws depend on."""
        known = np.flatnonzero(~np.isnan(self.priority))
        return {
            "priority": {self._uids[i]: float(self.priority[i]) for i in known},
            "draws": self._draws,
            "steps": self._steps,
            "drawn": self._drawn,
            "repeated": self._repeated,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state."""
        self.priority[:] = np.nan
        for uid, value in state["priority"].items():
            self.priority[self._place[uid]] = float(value)
        self._draws, self._steps = int(state["draws"]), int(state["steps"])
        self._drawn, self._repeated = int(state["drawn"]), int(state["repeated"])


def _gap(rows: Batch, name: str, other: str) -> NDArray[np.float64]:
    """[B] mean over the tokens of |name − other|; 0 for a row without tokens."""
    first = rows.tokens(name)
    values = np.abs(first.values - (rows.tokens(other).values if other else 0.0))
    row = np.repeat(np.arange(len(first)), first.lengths)
    total = np.bincount(row, weights=values, minlength=len(first))
    return np.asarray(total / np.maximum(first.lengths, 1))
