"""Options of GRPO: light, so that roles and requirements can be read without torch."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from bestiary.kit import KLKind
from bestiary.protocols import AlgorithmOptions, Role, Sampling


@dataclass(frozen=True, kw_only=True, slots=True)
class GRPOOptions(AlgorithmOptions):
    """Group relative policy optimisation (Shao et al. 2024, arXiv:2402.03300)."""

    components: ClassVar[dict[str, str]] = {"advantage": "group", "loss": "clip"}

    samples: int = 8
    """Responses for each prompt; the group that rewards are compared in."""
    temperature: float = 1.0
    """Of sampling; the trainer's log-probabilities use the same."""
    top_p: float = 1.0
    """Of sampling; below 1 the ratio compares with the truncated distribution."""
    max_tokens: int | None = None
    """Response tokens at most; None takes the task's own limit."""
    epochs: int = 1
    """Passes over each batch."""
    minibatches: int = 1
    """Optimizer steps in each pass."""
    kl_coef: float = 0.0
    """Weight of the KL to the reference in the loss; 0 needs no reference model. The paper has
    0.04; DAPO (arXiv:2503.14476) and later work drop it."""
    kl_kind: KLKind = "k3"
    """Estimator of that KL; the paper's is k3 (eq. 4). ``full`` is exact over the vocabulary, with
    the reference in the actor's processes."""
    kl_gradient: Literal["value", "straight_through_k2", "ratio_weighted"] = "value"
    """What is differentiated; ``value`` is the paper's, the others have the gradient of
    KL(policy || reference) in expectation."""
    entropy_coef: float = 0.0
    """Weight of an entropy bonus."""
    old: Literal["proximal", "rollout"] = "proximal"
    """Where the ratio's old log-probabilities come from: the trainer's weights at the start of
    the step, or the engine that sampled."""

    def __post_init__(self) -> None:
        if self.samples < 2:
            raise ValueError(f"samples={self.samples}: a group needs at least 2 responses")
        if self.kl_coef < 0:
            raise ValueError(f"kl_coef={self.kl_coef}: must not be negative")
        if self.epochs < 1 or self.minibatches < 1:
            raise ValueError(
                f"epochs={self.epochs} minibatches={self.minibatches}: both must be at least 1"
            )
        if self.minibatches > self.prompts:
            raise ValueError(
                f"minibatches={self.minibatches} is more than prompts={self.prompts}; "
                "a mini-batch holds whole groups"
            )

    def roles(self) -> tuple[Role, ...]:
        """The actor, a scorer, and a frozen reference where the KL has weight."""
        reference = (Role("reference", frozen=True),) if self.kl_coef > 0 else ()
        return (Role("actor"), *reference, Role("reward", frozen=True))

    def samplings(self) -> tuple[Sampling, ...]:
        """``samples`` responses for each prompt."""
        return (Sampling(n=self.samples, temperature=self.temperature, top_p=self.top_p),)

    def provides(self) -> frozenset[str]:
        """What is there before the update."""
        reference = frozenset({"ref_logprobs"}) if self.kl_coef > 0 else frozenset[str]()
        return reference | {"old_logprobs"}
