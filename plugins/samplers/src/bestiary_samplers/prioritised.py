"""Prompts by priority."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bestiary.batch import Batch
from bestiary.protocols import Prompts
from bestiary_samplers.groups import counted_rows
from bestiary_samplers.options import PrioritisedOptions

_NEEDS = {
    "td_error": ("returns", "values"),
    "advantage": ("advantages",),
    "kl": ("old_logprobs", "rollout_logprobs"),
    "reward_std": ("reward",),
}


class Prioritised:
    """Draws prompts with P ∝ (priority + ε)^α, without replacement within a draw.

    A prompt that was not seen yet has the largest priority so far. The importance weights
    (N·P)^−β, divided by their maximum over the draw, go into the sample column ``sample_weight``,
    which multiplies the loss of the prompt's responses.

    Source: Schaul et al. 2016, arXiv:1511.05952, section 3.3 and 3.4; differs from it in that a
    prompt with its group takes the place of a transition.

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
        self._draws = 0
        self._steps = 0

    @property
    def beta(self) -> float:
        """The exponent of the importance weights now."""
        o = self.options
        if o.beta == 0.0:
            return 0.0
        return o.beta + (1.0 - o.beta) * min(1.0, self._steps / o.beta_steps)

    def chances(self) -> NDArray[np.float64]:
        """[N] the probability of each prompt in a draw of one."""
        seen = self.priority[~np.isnan(self.priority)]
        fresh = float(seen.max()) if len(seen) else 1.0
        weight = (np.nan_to_num(self.priority, nan=fresh) + self.options.epsilon) ** (
            self.options.alpha
        )
        return np.asarray(weight / weight.sum())

    def draw(self, n: int) -> Batch:
        """``n`` prompts; where there are fewer, each comes again once all have come."""
        chances, count = self.chances(), len(self._uids)
        rng = np.random.default_rng([self.source.seed & 0xFFFF_FFFF_FFFF_FFFF, self._draws])
        self._draws += 1
        chosen: list[int] = []
        while len(chosen) < n:
            size = min(n - len(chosen), count)
            chosen += rng.choice(count, size=size, replace=False, p=chances).tolist()
        weight = (count * chances[chosen]) ** -self.beta
        return self.source.hand_out(chosen).with_columns(sample_weight=weight / weight.max())

    def accept(self, groups: Batch) -> tuple[Batch, int]:
        """All groups; nothing more is needed."""
        return groups, 0

    def observe(self, batch: Batch) -> None:
        """Take the new priority of each prompt in a finished batch.

        Raises:
            ValueError: if the algorithm does not make the columns of this priority.
        """
        self._steps += 1
        missing = [name for name in _NEEDS[self.options.by] if name not in batch]
        if missing:
            raise ValueError(
                f"sampler=prioritised by={self.options.by} needs the columns {missing}; the "
                "algorithm does not make them or does not show them (Algorithm.learned): choose "
                "another sampler.by"
            )
        rows = batch.take(np.flatnonzero(counted_rows(batch)))
        found = self._of_rows(rows)
        uids = rows["uid"]
        for uid in dict.fromkeys(uids):
            mine = found[uids == uid]
            value = float(mine.std() if self.options.by == "reward_std" else mine.mean())
            self.priority[self._place[uid]] = value

    def _of_rows(self, rows: Batch) -> NDArray[np.float64]:
        """[B] what the priority is taken from."""
        by = self.options.by
        if by == "reward_std":
            return rows["reward"].astype(np.float64)
        if by == "td_error":
            return _gap(rows, "returns", "values")
        if by == "kl":
            return _gap(rows, "old_logprobs", "rollout_logprobs")
        if "advantages" in rows.columns:
            return _gap(rows, "advantages", "")
        return np.abs(rows["advantages"].astype(np.float64))

    def metrics(self) -> dict[str, float]:
        """Prompts seen, their mean priority, and β."""
        seen = self.priority[~np.isnan(self.priority)]
        return {
            "sampler/seen": float(len(seen)),
            "sampler/priority": float(seen.mean()) if len(seen) else float("nan"),
            "sampler/beta": self.beta,
        }

    def state_dict(self) -> dict[str, Any]:
        """Priorities by uid, and the counters that the draws depend on."""
        known = np.flatnonzero(~np.isnan(self.priority))
        return {
            "priority": {self._uids[i]: float(self.priority[i]) for i in known},
            "draws": self._draws,
            "steps": self._steps,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state."""
        self.priority[:] = np.nan
        for uid, value in state["priority"].items():
            self.priority[self._place[uid]] = float(value)
        self._draws, self._steps = int(state["draws"]), int(state["steps"])


def _gap(rows: Batch, name: str, other: str) -> NDArray[np.float64]:
    """[B] mean over the tokens of |name − other|; 0 for a row without tokens."""
    first = rows.tokens(name)
    values = np.abs(first.values - (rows.tokens(other).values if other else 0.0))
    row = np.repeat(np.arange(len(first)), first.lengths)
    total = np.bincount(row, weights=values, minlength=len(first))
    return np.asarray(total / np.maximum(first.lengths, 1))
