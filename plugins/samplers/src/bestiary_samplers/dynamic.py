"""Dynamic sampling: groups without a difference in reward are dropped and refilled."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bestiary.batch import Batch
from bestiary.protocols import Prompts
from bestiary_samplers.groups import JudgedRewards, response_tokens, rewards_by_group
from bestiary_samplers.options import DynamicOptions


def all_equal(rewards: NDArray[np.float64]) -> bool:
    """Whether a group teaches nothing: no valid sample, or max equals min."""
    return len(rewards) == 0 or bool(rewards.max() == rewards.min())


class Dynamic:
    """Keeps groups whose valid rewards differ and asks for as many prompts as it dropped.

    Source: DAPO, arXiv:2503.14476, section 3.2. Differs from it in judging by the reward itself,
    whatever its range. A step has at most ``max_rounds`` rounds; in the last one nothing more is
    asked for, and where the step has no group at all, those of the last round are kept (their
    advantages are 0, so the step is harmless and the run goes on).

    Args:
        options: the limit.
        source: the prompts.
    """

    def __init__(self, options: DynamicOptions, source: Prompts) -> None:
        self.options = options
        self.source = source
        self.order = source.order(shuffle=options.shuffle)
        self._rounds = 0
        self._kept = 0
        self._counts = {"judged": 0, "dropped": 0, "dropped_tokens": 0, "given_up": 0}
        self._judged = JudgedRewards()

    def draw(self, n: int) -> Batch:
        """The next ``n`` prompts of the walk."""
        return self.source.hand_out(self.order.next(n))

    def accept(self, groups: Batch) -> tuple[Batch, int]:
        """(rows of the groups that are kept, number of groups that were dropped)."""
        self._judged.add(groups)
        self._rounds += 1
        dull = np.array([all_equal(rewards) for rewards in rewards_by_group(groups)], dtype=bool)
        dropped = int(dull.sum())
        self._kept += len(dull) - dropped
        self._counts["judged"] += len(dull)
        if dropped and self._rounds >= self.options.max_rounds:
            self._counts["given_up"] += 1
            if self._kept == 0:
                return groups, 0
            return self._keep(groups, dull), 0
        return self._keep(groups, dull), dropped

    def _keep(self, groups: Batch, dull: NDArray[np.bool_]) -> Batch:
        self._counts["dropped"] += int(dull.sum())
        drop = dull[groups.group_index()]
        self._counts["dropped_tokens"] += response_tokens(groups, drop)
        return groups.take(~drop)

    def observe(self, batch: Batch) -> None:
        """A step is complete: the next one has all its rounds again."""
        self._rounds = 0
        self._kept = 0
        self._judged.close()

    def metrics(self) -> dict[str, float]:
        """Counts since the start: groups judged and dropped, their tokens, steps that gave up."""
        counts = {f"sampler/{name}": float(count) for name, count in self._counts.items()}
        return {**counts, "sampler/reward": self._judged.mean}

    def state_dict(self) -> dict[str, Any]:
        """The place in the walk and in the step, and the counts."""
        return {
            "order": self.order.state_dict(),
            "rounds": self._rounds,
            "kept": self._kept,
            "counts": dict(self._counts),
            "judged": self._judged.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved place."""
        self.order.load_state_dict(state["order"])
        self._rounds = int(state["rounds"])
        self._kept = int(state["kept"])
        self._counts.update({name: int(count) for name, count in state["counts"].items()})
        self._judged.load_state_dict(state["judged"])
