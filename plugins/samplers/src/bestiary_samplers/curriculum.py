"""A curriculum by pass rate."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from bestiary.batch import Batch
from bestiary.protocols import Prompts
from bestiary_samplers.groups import counted_rows
from bestiary_samplers.options import CurriculumOptions


@dataclass(slots=True)
class Seen:
    """What is known of a prompt.

    Args:
        rate: estimate of its pass rate.
        epoch: when it was last observed.
    """

    rate: float
    epoch: int


class Curriculum:
    """Draws prompts whose pass rate lies within a window, and those that were not seen yet.

    Walks in the order of (seed, epoch) and skips prompts outside of the window until
    ``retry_epochs`` epochs after they were last observed. A draw for which a whole epoch has too
    few takes the skipped ones in the order of the walk, so a draw always has ``n`` prompts.

    Args:
        options: the window.
        source: the prompts.
    """

    def __init__(self, options: CurriculumOptions, source: Prompts) -> None:
        self.options = options
        self.source = source
        self.order = source.order()
        self.seen: dict[str, Seen] = {}
        self._uids = list(source.uids)
        self._skipped = 0

    def draw(self, n: int) -> Batch:
        """The next ``n`` prompts of the walk that are worth a try."""
        chosen: list[int] = []
        skipped: list[int] = []
        for _ in range(len(self._uids)):
            if len(chosen) == n:
                break
            index = int(self.order.next(1)[0])
            (chosen if self._wanted(index) else skipped).append(index)
        self._skipped += len(skipped)
        lacking = n - len(chosen)
        chosen += skipped[:lacking]
        if len(chosen) < n:  # more than an epoch was asked for
            chosen += self.order.next(n - len(chosen)).tolist()
        return self.source.hand_out(chosen)

    def _wanted(self, index: int) -> bool:
        seen = self.seen.get(self._uids[index])
        if seen is None or self.order.epoch - seen.epoch >= self.options.retry_epochs:
            return True
        return self.options.low <= seen.rate <= self.options.high

    def accept(self, groups: Batch) -> tuple[Batch, int]:
        """All groups; nothing more is needed."""
        return groups, 0

    def observe(self, batch: Batch) -> None:
        """Update the pass rates of the prompts in a finished batch."""
        counted = counted_rows(batch)
        passed = batch["reward"].astype(np.float64) >= self.options.success
        uids = batch["uid"]
        for uid in dict.fromkeys(uids[counted]):
            now = float(passed[(uids == uid) & counted].mean())
            earlier = self.seen.get(uid)
            keep = self.options.decay
            rate = now if earlier is None else keep * earlier.rate + (1.0 - keep) * now
            self.seen[uid] = Seen(rate, self.order.epoch)

    def metrics(self) -> dict[str, float]:
        """Prompts seen and skipped so far, and the mean of the estimates."""
        rates = [seen.rate for seen in self.seen.values()]
        return {
            "sampler/seen": float(len(rates)),
            "sampler/skipped": float(self._skipped),
            "sampler/pass_rate": float(np.mean(rates)) if rates else float("nan"),
        }

    def state_dict(self) -> dict[str, Any]:
        """The place in the walk and what is known of each prompt."""
        return {
            "order": self.order.state_dict(),
            "seen": {uid: [seen.rate, seen.epoch] for uid, seen in self.seen.items()},
            "skipped": self._skipped,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved place."""
        self.order.load_state_dict(state["order"])
        self.seen = {uid: Seen(float(rate), int(e)) for uid, (rate, e) in state["seen"].items()}
        self._skipped = int(state["skipped"])
