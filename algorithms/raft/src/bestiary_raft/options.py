"""Options of rejection sampling: light, so that roles can be read without torch."""

from dataclasses import dataclass
from typing import ClassVar

from bestiary.protocols import AlgorithmOptions, Role, Sampling


@dataclass(frozen=True, kw_only=True, slots=True)
class RAFTOptions(AlgorithmOptions):
    """Reward-ranked fine-tuning (Dong et al. 2023, arXiv:2304.06767)."""

    components: ClassVar[dict[str, str]] = {"loss": "nll"}

    samples: int = 8
    """Responses for each prompt."""
    keep: int = 1
    """Best responses of each prompt that are imitated; the paper has 1."""
    threshold: float | None = None
    """Imitate only responses with at least this reward; None imitates the best whatever they
    are."""
    temperature: float = 1.0
    """Of sampling; the trainer's log-probabilities use the same."""
    top_p: float = 1.0
    """Of sampling; below 1 the ratio compares with the truncated distribution."""
    max_tokens: int | None = None
    """Response tokens at most; None takes the task's own limit."""
    epochs: int = 1
    """Passes over each batch."""

    def __post_init__(self) -> None:
        if not 1 <= self.keep <= self.samples:
            raise ValueError(f"keep={self.keep}: must be in 1 … samples={self.samples}")
        if self.epochs < 1:
            raise ValueError(f"epochs={self.epochs}: must be at least 1")

    def roles(self) -> tuple[Role, ...]:
        """The actor and a scorer."""
        return (Role("actor"), Role("reward", frozen=True))

    def samplings(self) -> tuple[Sampling, ...]:
        """``samples`` responses for each prompt."""
        return (Sampling(n=self.samples, temperature=self.temperature, top_p=self.top_p),)
