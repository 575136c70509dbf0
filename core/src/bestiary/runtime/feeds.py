"""Supervised rows beside the rollouts: what an algorithm asked for by ``feeds()``."""

from collections.abc import Mapping
from typing import Any

from bestiary.batch import Batch
from bestiary.data.source import PromptSource
from bestiary.errors import DataError


class TargetFeed:
    """Rows whose response is the problem's target, epoch after epoch.

    Args:
        name: what the algorithm calls it.
        source: the training prompts of a task whose problems have targets.

    Raises:
        DataError: if they have none.
    """

    def __init__(self, name: str, source: PromptSource) -> None:
        if not source.has_targets:
            raise DataError(
                f"the algorithm's data {name!r} come from a task whose problems have no targets",
                hint="choose a task with target texts, or switch that term off",
            )
        self.source = source
        self.order = source.order()

    def next(self, n: int) -> Batch:
        """The next ``n`` rows."""
        return self.source.hand_out(self.order.next(n)).with_response("target_ids")

    def state_dict(self) -> dict[str, Any]:
        """The place in the walk, and the source's counts."""
        return {"order": self.order.state_dict(), "source": self.source.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved place."""
        self.order.load_state_dict(state["order"])
        self.source.load_state_dict(state["source"])
