"""Best of n: only some responses of each group stay trainable."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from bestiary.batch import Batch
from bestiary.protocols import Prompts
from bestiary_samplers.groups import JudgedRewards, counted_rows
from bestiary_samplers.options import BestOfNOptions


class BestOfN:
    """Keeps every group, with its best (and worst) valid responses trainable and no others.

    Rows that are not trainable leave estimators and updates, so with an estimator that compares
    within a group only the chosen rows are compared. Equal rewards go by the order of the rows.

    Source: rejection sampling as in RAFT (Dong et al. 2023, arXiv:2304.06767, algorithm 1), here
    with any loss.

    Args:
        options: how many.
        source: the prompts.
    """

    def __init__(self, options: BestOfNOptions, source: Prompts) -> None:
        self.options = options
        self.source = source
        self.order = source.order()
        self._counts = {"judged": 0, "chosen": 0}
        self._judged = JudgedRewards()

    def draw(self, n: int) -> Batch:
        """The next ``n`` prompts of the walk."""
        return self.source.hand_out(self.order.next(n))

    def accept(self, groups: Batch) -> tuple[Batch, int]:
        """(all rows, the chosen ones trainable; 0)."""
        self._judged.add(groups)
        o, index = self.options, groups.group_index()
        counted, rewards = counted_rows(groups), groups["reward"].astype(np.float64)
        # A group without a counted response stays as it is: there is nothing to choose from.
        none = ~np.isin(index, index[counted])
        chosen = groups["trainable"].astype(bool) & none
        for group in range(int(index.max(initial=-1)) + 1):
            mine = np.flatnonzero((index == group) & counted)
            ranked = mine[np.argsort(-rewards[mine], kind="stable")]
            chosen[ranked[: o.best]] = True
            chosen[ranked[len(ranked) - min(o.worst, len(ranked)) :]] = True
        self._counts["judged"] += int(counted.sum())
        self._counts["chosen"] += int(chosen.sum())
        return groups.with_columns(trainable=chosen), 0

    def observe(self, batch: Batch) -> None:
        """A step is complete."""
        self._judged.close()

    def metrics(self) -> dict[str, float]:
        """Counts since the start: responses judged, and those that stayed trainable."""
        counts = {f"sampler/{name}": float(count) for name, count in self._counts.items()}
        return {**counts, "sampler/reward": self._judged.mean}

    def state_dict(self) -> dict[str, Any]:
        """The place in the walk and the counts."""
        return {
            "order": self.order.state_dict(),
            "counts": dict(self._counts),
            "judged": self._judged.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved place."""
        self.order.load_state_dict(state["order"])
        self._counts.update({name: int(count) for name, count in state["counts"].items()})
        self._judged.load_state_dict(state["judged"])
