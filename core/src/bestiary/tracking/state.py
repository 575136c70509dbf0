"""What the display knows about a run: the numbers seen so far, and the time that is left."""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

HISTORY = 400
"""Values kept of each drawn quantity; when full, every second one is dropped."""

_DRAWN = ("reward/mean", "eval/exact_match", "eval/greedy")
_RECENT = 8


@dataclass(slots=True)
class DisplayState:
    """Everything that the panel and the plain lines are made of.

    Args:
        total_steps: steps of the run; 0 if unknown.
        max_seconds: seconds after which the run ends by itself; None is no limit.
        clock: seconds, monotonic.
    """

    total_steps: int = 0
    max_seconds: float | None = None
    clock: Callable[[], float] = time.monotonic
    title: str = ""
    folder: str = ""
    phase: str = ""
    status: str = ""
    step: int = 0
    latest: dict[str, Any] = field(default_factory=dict)
    """The last value of each metric, whenever it was measured."""
    spent: dict[str, float] = field(default_factory=dict)
    """Seconds of each phase so far, under the metric's name."""
    history: dict[str, list[float]] = field(default_factory=dict)
    sample: Mapping[str, Any] | None = None
    began: float = 0.0
    ended: float | None = None
    marks: list[tuple[int, float]] = field(default_factory=list)
    """(step, clock): the first one seen and the last few."""

    def __post_init__(self) -> None:
        self.began = self.clock()

    def start(self, title: str, folder: str) -> None:
        """Begin to count the time of the run."""
        self.title, self.folder = title, folder
        self.began = self.clock()
        self.marks = []

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Take in one step; metrics that it lacks keep their last value."""
        self.step, self.phase = step, ""
        for name, value in metrics.items():
            if value is None or not math.isfinite(value):
                continue
            self.latest[name] = value
            if name.startswith("time/"):
                self.spent[name] = self.spent.get(name, 0.0) + value
            if name in _DRAWN:
                self._remember(name, float(value))
        self.marks = [*self.marks[:1], *self.marks[1:][-_RECENT:], (step, self.clock())]

    def _remember(self, name: str, value: float) -> None:
        values = self.history.setdefault(name, [])
        values.append(value)
        if len(values) > HISTORY:
            del values[1:-1:2]

    @property
    def graded(self) -> bool:
        """Whether the held-out reward says more than the share of right answers."""
        reward = self.latest.get("eval/reward")
        return reward is not None and reward != self.latest.get("eval/exact_match")

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start."""
        return (self.clock() if self.ended is None else self.ended) - self.began

    @property
    def left_s(self) -> float | None:
        """Estimated seconds to the last step; None before two steps are known.

        The mean of the pace of the last steps and of all steps: the first alone jumps at each
        evaluation, the second is slow to notice that responses grow longer.
        """
        if not self.total_steps or len(self.marks) < 2:
            return None
        now_step, now = self.marks[-1]
        paces = [
            (now - then) / (now_step - step)
            for step, then in (self.marks[0], self.marks[1])
            if step < now_step
        ]
        if not paces:
            return None
        left = (self.total_steps - now_step) * sum(paces) / len(paces)
        left -= self.clock() - now
        if self.max_seconds is not None:
            left = min(left, self.max_seconds - (self.clock() - self.marks[0][1]))
        return max(0.0, left)
