"""Options of ReMax: light, so that roles and requirements can be read without torch."""

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from bestiary.kit import KLPenalty
from bestiary.protocols import AlgorithmOptions, Role, Sampling


@dataclass(frozen=True, kw_only=True, slots=True)
class ReMaxOptions(AlgorithmOptions):
    """ReMax (Li et al. 2023, arXiv:2310.10505)."""

    components: ClassVar[dict[str, str]] = {"advantage": "remax", "loss": "reinforce"}

    samples: int = 1
    """Responses for each prompt, beside the greedy one; the paper has 1."""
    temperature: float = 1.0
    """Of sampling; the trainer's log-probabilities use the same."""
    top_p: float = 1.0
    """Of sampling; below 1 the ratio compares with the truncated distribution."""
    max_tokens: int | None = None
    """Response tokens at most; None takes the task's own limit."""
    epochs: int = 1
    """Passes over each batch; the paper has 1, without a ratio. More passes want loss=clip."""
    minibatches: int = 1
    """Optimizer steps in each pass."""
    kl: KLPenalty = field(default_factory=KLPenalty)
    """The KL to the reference. In the reward ``advantage.kl`` says how it enters: as in the
    original code (one step), or accumulated, which alone is the gradient of E[r] - β·KL."""
    kl_decay: Literal["none", "linear"] = "none"
    """``linear`` lowers β to 0 over ``kl_steps`` steps, as the original code can."""
    kl_steps: int = 0
    """Steps of the linear decay."""
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
        if self.kl_decay == "linear" and not (self.kl_steps > 0 and self.kl.coef > 0):
            raise ValueError(
                f"kl_decay=linear with kl_steps={self.kl_steps} and kl.coef={self.kl.coef}: "
                "both must be above 0"
            )

    def roles(self) -> tuple[Role, ...]:
        """The actor, a scorer, and a frozen reference where the KL has weight."""
        return (Role("actor"), *self.kl.roles(), Role("reward", frozen=True))

    def samplings(self) -> tuple[Sampling, ...]:
        """The samples and the greedy baseline, in one engine call."""
        return (
            Sampling(n=self.samples, temperature=self.temperature, top_p=self.top_p),
            Sampling(greedy=True, temperature=self.temperature, trainable=False, tag="baseline"),
        )

    def provides(self) -> frozenset[str]:
        """What is there before the update."""
        return self.kl.provides() | {"old_logprobs"}
