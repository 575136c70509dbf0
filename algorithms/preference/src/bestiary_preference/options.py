"""Options of learning from preferences: light, so that roles can be read without torch."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from bestiary.protocols import AlgorithmOptions, Role, Sampling

Source = Literal["rollouts", "targets", "pairs"]


@dataclass(frozen=True, kw_only=True, slots=True)
class RewardModelOptions(AlgorithmOptions):
    """A reward model from preference pairs: Bradley and Terry 1952, arXiv:2203.02155, eq. 1."""

    components: ClassVar[dict[str, str]] = {"loss": "bradley_terry"}
    trains_from: ClassVar[Source] = "pairs"
    sign: ClassVar[float] = 1.0
    """Of a score that grows with what people prefer."""

    prompts: int = 64
    """Pairs in each optimizer step."""

    def roles(self) -> tuple[Role, ...]:
        """The model with a head for scores."""
        return (Role("scorer", kind="value"),)


@dataclass(frozen=True, kw_only=True, slots=True)
class CostModelOptions(RewardModelOptions):
    """A cost model from preference pairs with safety labels (arXiv:2310.12773, eq. 8)."""

    components: ClassVar[dict[str, str]] = {"loss": "cost_preference"}
    sign: ClassVar[float] = -1.0
    """A cost is higher for what people do not prefer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DPOOptions(AlgorithmOptions):
    """Direct preference optimisation (Rafailov et al. 2023, arXiv:2305.18290)."""

    components: ClassVar[dict[str, str]] = {"loss": "dpo"}
    trains_from: ClassVar[Source] = "pairs"

    prompts: int = 32
    """Pairs in each optimizer step."""

    def roles(self) -> tuple[Role, ...]:
        """The actor, the reference, and a scorer for the held-out problems."""
        return (Role("actor"), Role("reference", frozen=True), Role("reward", frozen=True))

    def provides(self) -> frozenset[str]:
        """What is there before the update."""
        return frozenset({"ref_logprobs", "preferred"})


@dataclass(frozen=True, kw_only=True, slots=True)
class OnlineDPOOptions(DPOOptions):
    """DPO on pairs of the policy's own responses (Guo et al. 2024, arXiv:2402.04792)."""

    trains_from: ClassVar[Source] = "rollouts"

    samples: int = 4
    """Responses for each prompt; the best and the worst of them are the pair."""
    temperature: float = 1.0
    """Of sampling; the trainer's log-probabilities use the same."""
    max_tokens: int | None = None
    """Response tokens at most; None takes the task's own limit."""

    def __post_init__(self) -> None:
        if self.samples < 2:
            raise ValueError(f"samples={self.samples}: a pair needs at least 2 responses")

    def samplings(self) -> tuple[Sampling, ...]:
        """``samples`` responses for each prompt."""
        return (Sampling(n=self.samples, temperature=self.temperature),)
