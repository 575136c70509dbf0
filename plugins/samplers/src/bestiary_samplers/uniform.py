"""Each prompt once an epoch."""

from collections.abc import Mapping
from typing import Any

from bestiary.batch import Batch
from bestiary.protocols import Prompts
from bestiary_samplers.options import UniformOptions


class Uniform:
    """Walks through the prompts in the order of (seed, epoch) and keeps every group.

    Args:
        options: whether to shuffle.
        source: the prompts.
    """

    def __init__(self, options: UniformOptions, source: Prompts) -> None:
        self.source = source
        self.order = source.order(shuffle=options.shuffle)

    def draw(self, n: int) -> Batch:
        """The next ``n`` prompts of the walk."""
        return self.source.hand_out(self.order.next(n))

    def accept(self, groups: Batch) -> tuple[Batch, int]:
        """All groups; nothing more is needed."""
        return groups, 0

    def observe(self, batch: Batch) -> None:
        """Nothing is learnt."""

    def state_dict(self) -> dict[str, Any]:
        """The place in the walk."""
        return {"order": self.order.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved place."""
        self.order.load_state_dict(state["order"])
