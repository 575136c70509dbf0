"""A sampler: some prompts in turn, the rest those that the policy failed most."""

from typing import Any

from bestiary import Batch
from bestiary_lab.options import HardestOptions


class Hardest:
    """Remembers each prompt's newest mean reward; the lowest come first."""

    def __init__(self, options: HardestOptions, source: Any) -> None:  # noqa: ANN401
        self.options, self.source = options, source
        self.state: dict[str, Any] = {"rates": {}, "cursor": 0}

    def draw(self, n: int) -> Batch:
        """The next ``n`` prompts."""
        rates, cursor = self.state["rates"], self.state["cursor"]
        hard = sorted(rates, key=rates.get)[: int(n * self.options.hard)]
        turn = [(cursor + i) % len(self.source) for i in range(n - len(hard))]
        self.state["cursor"] = (cursor + len(turn)) % len(self.source)
        drawn: Batch = self.source.hand_out([*map(self.source.uids.index, hard), *turn])
        return drawn

    def accept(self, groups: Batch) -> tuple[Batch, int]:
        """Keep every group."""
        return groups, 0

    def observe(self, batch: Batch) -> None:
        """Learn pass rates from the valid samples of each group."""
        for group in batch.take(batch["valid"].astype(bool)).groups():
            self.state["rates"][group["uid"][0]] = float(group["reward"].mean())

    def state_dict(self) -> dict[str, Any]:
        """Pass rates and the place in the prompts."""
        return {**self.state, "rates": dict(self.state["rates"])}

    def load_state_dict(self, state: Any) -> None:  # noqa: ANN401
        """Go on from a saved state."""
        self.state = {**state, "rates": dict(state["rates"])}
