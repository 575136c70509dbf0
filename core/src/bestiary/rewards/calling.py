"""Call a reward on a batch: attributed, under a time limit, and checked."""

import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from bestiary.errors import RewardError, boundary
from bestiary.protocols import Sample
from bestiary.rewards.check import Checked, check_scores
from bestiary.rewards.loading import LoadedReward


class Scorer(Protocol):
    """Scores a batch; where and how the function runs is its business."""

    def __call__(self, samples: Sequence[Sample]) -> list[Checked]:
        """One entry for each sample, in order."""
        ...

    def close(self) -> None:
        """Free what it holds."""
        ...


class DirectScorer:
    """Calls the function once for the whole batch, in this process.

    Args:
        reward: the function.
        limit_s: seconds for a batch; 0 is no limit.
    """

    def __init__(self, reward: LoadedReward, limit_s: float = 0.0) -> None:
        self.reward = reward
        self.limit_s = limit_s

    def __call__(self, samples: Sequence[Sample]) -> list[Checked]:
        """Call, check and return.

        Raises:
            RewardError: naming the function, and the first sample of the batch where it raised or
                ran over its limit.
        """
        if not samples:
            return []
        name, first = self.reward.name, samples[0]
        doing = f"calling reward {name!r} on {len(samples)} samples (the first is {first.uid})"
        with boundary(self.reward.owner, doing, RewardError):
            returned = within(self.limit_s, lambda: self.reward.function(samples), doing)
            # Inside: a generator runs the function's code only while it is read.
            return check_scores(returned, samples, name, self.reward.owner)

    def close(self) -> None:
        """Nothing is held."""


def within(limit_s: float, function: Callable[[], Any], doing: str) -> Any:  # noqa: ANN401
    """Call ``function`` and give up after ``limit_s`` seconds.

    A function that is given up keeps its thread until it ends by itself; the caller should let
    the process go.

    Raises:
        RewardError: when the limit passes; else what the function raises.
    """
    if limit_s <= 0.0:
        return function()
    outcome: dict[str, Any] = {}

    def work() -> None:
        try:
            outcome["value"] = function()
        except BaseException as error:
            outcome["error"] = error

    thread = threading.Thread(target=work, name="reward", daemon=True)
    thread.start()
    thread.join(limit_s)
    if thread.is_alive():
        raise RewardError(
            f"{doing} took longer than its limit of {limit_s:g} s",
            hint="make the function stop by itself on strange text, or raise the limit",
        )
    if "error" in outcome:
        raise outcome["error"]
    return outcome["value"]
