"""Options of the REINFORCE family: light, so that roles can be read without torch."""

from dataclasses import dataclass, field
from typing import ClassVar

from bestiary.kit import KLPenalty
from bestiary.protocols import AlgorithmOptions, Role, Sampling


@dataclass(frozen=True, kw_only=True, slots=True)
class ReinforceOptions(AlgorithmOptions):
    """REINFORCE (Williams 1992) with returns to go and no baseline."""

    components: ClassVar[dict[str, str]] = {"advantage": "reinforce", "loss": "reinforce"}

    samples: int = 8
    """Responses for each prompt."""
    temperature: float = 1.0
    """Of sampling; the trainer's log-probabilities use the same."""
    top_p: float = 1.0
    """Of sampling; below 1 the ratio compares with the truncated distribution."""
    max_tokens: int | None = None
    """Response tokens at most; None takes the task's own limit."""
    epochs: int = 1
    """Passes over each batch; more than one wants a loss with a ratio, as loss=clip."""
    minibatches: int = 1
    """Optimizer steps in each pass."""
    kl: KLPenalty = field(default_factory=KLPenalty)
    """The KL to the reference."""
    entropy_coef: float = 0.0
    """Weight of an entropy bonus."""

    def __post_init__(self) -> None:
        if self.samples < 1 or self.epochs < 1 or self.minibatches < 1:
            raise ValueError(
                f"samples={self.samples} epochs={self.epochs} minibatches={self.minibatches}: "
                "all must be at least 1"
            )
        if self.minibatches > self.prompts:
            raise ValueError(
                f"minibatches={self.minibatches} is more than prompts={self.prompts}; "
                "a mini-batch holds whole groups"
            )

    def roles(self) -> tuple[Role, ...]:
        """The actor, a scorer, and a frozen reference where the KL has weight."""
        return (Role("actor"), *self.kl.roles(), Role("reward", frozen=True))

    def samplings(self) -> tuple[Sampling, ...]:
        """``samples`` responses for each prompt."""
        return (Sampling(n=self.samples, temperature=self.temperature, top_p=self.top_p),)

    def provides(self) -> frozenset[str]:
        """What is there before the update."""
        return self.kl.provides() | {"old_logprobs"}


@dataclass(frozen=True, kw_only=True, slots=True)
class RLOOOptions(ReinforceOptions):
    """REINFORCE leave-one-out (Ahmadian et al. 2024, arXiv:2402.14740)."""

    components: ClassVar[dict[str, str]] = {"advantage": "rloo", "loss": "reinforce"}


@dataclass(frozen=True, kw_only=True, slots=True)
class ReinforcePPOptions(ReinforceOptions):
    """REINFORCE++ (Hu 2025, arXiv:2501.03262): KL to go, whitened over the batch."""

    components: ClassVar[dict[str, str]] = {"advantage": "reinforce_pp", "loss": "clip"}


@dataclass(frozen=True, kw_only=True, slots=True)
class ReinforcePPBaselineOptions(ReinforceOptions):
    """REINFORCE++ with the group's mean as baseline (arXiv:2501.03262)."""

    components: ClassVar[dict[str, str]] = {"advantage": "reinforce_pp_baseline", "loss": "clip"}


@dataclass(frozen=True, kw_only=True, slots=True)
class OPOOptions(ReinforceOptions):
    """On-policy with optimal baseline (Hao et al. 2025, arXiv:2505.23585)."""

    components: ClassVar[dict[str, str]] = {"advantage": "opo", "loss": "reinforce"}


@dataclass(frozen=True, kw_only=True, slots=True)
class GPGOptions(ReinforceOptions):
    """Group policy gradient (Chu et al. 2025, arXiv:2504.02546)."""

    components: ClassVar[dict[str, str]] = {"advantage": "gpg", "loss": "reinforce"}


@dataclass(frozen=True, kw_only=True, slots=True)
class OTBOptions(ReinforceOptions):
    """REINFORCE with a variance-optimal baseline at each token position."""

    components: ClassVar[dict[str, str]] = {"advantage": "otb", "loss": "reinforce"}
