"""Over-sampling: more prompts than wanted, of which the most informative groups are kept."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from bestiary.batch import Batch
from bestiary.protocols import Prompts
from bestiary_samplers.groups import JudgedRewards, response_tokens, rewards_by_group
from bestiary_samplers.options import OversampleOptions


class Oversample:
    """Draws factor·n prompts and keeps the n groups whose valid rewards differ most.

    The measure is the deviation of the rewards; among equals the earlier group is kept. Unlike
    dynamic sampling a step has one round, so its cost is known.

    Args:
        options: how many more.
        source: the prompts.
    """

    def __init__(self, options: OversampleOptions, source: Prompts) -> None:
        self.options = options
        self.source = source
        self.order = source.order()
        self._wanted = 0
        self._counts = {"judged": 0, "dropped": 0, "dropped_tokens": 0}
        self._judged = JudgedRewards()

    def draw(self, n: int) -> Batch:
        """The next factor·n prompts of the walk."""
        self._wanted = n
        return self.source.hand_out(self.order.next(math.ceil(n * self.options.factor)))

    def accept(self, groups: Batch) -> tuple[Batch, int]:
        """(the n groups with the largest deviation, 0)."""
        self._judged.add(groups)
        rewards = rewards_by_group(groups)
        spread = np.array([r.std() if len(r) else -1.0 for r in rewards])
        kept = np.sort(np.argsort(-spread, kind="stable")[: self._wanted])
        self._counts["judged"] += len(spread)
        self._counts["dropped"] += len(spread) - len(kept)
        keep = np.isin(groups.group_index(), kept)
        self._counts["dropped_tokens"] += response_tokens(groups, ~keep)
        return groups.take(keep), 0

    def observe(self, batch: Batch) -> None:
        """A step is complete."""
        self._judged.close()

    def metrics(self) -> dict[str, float]:
        """Counts since the start: groups judged and dropped, and the tokens of those."""
        counts = {f"sampler/{name}": float(count) for name, count in self._counts.items()}
        return {**counts, "sampler/reward": self._judged.mean}

    def state_dict(self) -> dict[str, Any]:
        """The place in the walk and the counts."""
        return {
            "order": self.order.state_dict(),
            "wanted": self._wanted,
            "counts": dict(self._counts),
            "judged": self._judged.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved place."""
        self.order.load_state_dict(state["order"])
        self._wanted = int(state["wanted"])
        self._counts.update({name: int(count) for name, count in state["counts"].items()})
        self._judged.load_state_dict(state["judged"])
