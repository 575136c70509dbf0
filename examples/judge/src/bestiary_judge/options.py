"""Options of learning under a judge."""

from dataclasses import dataclass
from typing import ClassVar

from bestiary.protocols import AlgorithmOptions, Role, Sampling


@dataclass(frozen=True, kw_only=True, slots=True)
class JudgedOptions(AlgorithmOptions):
    """A frozen model is asked about each response; its verdict is the reward."""

    components: ClassVar[dict[str, str]] = {"advantage": "group", "loss": "clip"}

    judge: str = ""
    """The judge's weights, as ``model.path``; empty is the run's own model as it starts."""
    question: str = "{prompt}"
    """What the judge is asked; may name ``{prompt}`` and ``{response}``."""
    verdict: str = "{response}"
    """The verdict that earns 1; any other earns 0. By default the judge has to answer the prompt
    as the policy did."""
    samples: int = 8
    """Responses for each prompt."""

    def roles(self) -> tuple[Role, ...]:
        """The policy, the judge, and the task's own scorer, which only evaluates."""
        judge = Role("judge", frozen=True, kind="policy", path=self.judge)
        return (Role("actor"), judge, Role("reward", frozen=True))

    def samplings(self) -> tuple[Sampling, ...]:
        """``samples`` responses for each prompt."""
        return (Sampling(n=self.samples),)
