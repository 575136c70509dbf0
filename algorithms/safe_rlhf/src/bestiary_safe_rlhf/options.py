"""Options of Safe RLHF: light, so that roles and requirements can be read without torch."""

from dataclasses import dataclass, field
from typing import ClassVar

from bestiary.kit import KLPenalty
from bestiary.kit.rewards import READS
from bestiary.protocols import AdvantageOptions, AlgorithmOptions, Role, Sampling, Scope


@dataclass(frozen=True, kw_only=True, slots=True)
class LagrangianOptions(AdvantageOptions):
    """Advantages of reward and cost, combined by the multiplier (arXiv:2310.12773)."""

    scope: ClassVar[Scope] = "row"
    requires: ClassVar[frozenset[str]] = frozenset({"reward", "cost", "values", "cost_values"})
    provides: ClassVar[frozenset[str]] = frozenset({"advantages", "returns", "cost_returns"})
    optional: ClassVar[frozenset[str]] = READS

    gamma: float = 1.0
    """Discount for each token, of reward and cost alike."""
    lam: float = 0.95
    """Trace decay of GAE, of reward and cost alike."""
    whiten: bool = False
    """Whiten the combined advantages over the batch; the original code does not."""
    score_clip: float | None = 50.0
    """Bound of raw rewards and costs; the original code has 50, None has none."""

    def __post_init__(self) -> None:
        if self.score_clip is not None and not self.score_clip > 0:
            raise ValueError(f"score_clip={self.score_clip}: must be above 0, or null for none")
        for name in ("gamma", "lam"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ValueError(f"{name}={getattr(self, name)}: must be in [0, 1]")


@dataclass(frozen=True, kw_only=True, slots=True)
class SafeRLHFOptions(AlgorithmOptions):
    """Safe RLHF, PPO-Lagrangian (Dai et al. 2023, arXiv:2310.12773)."""

    components: ClassVar[dict[str, str]] = {"advantage": "lagrangian", "loss": "clip"}

    samples: int = 4
    """Responses for each prompt."""
    temperature: float = 1.0
    """Of sampling; the trainer's log-probabilities use the same."""
    top_p: float = 1.0
    """Of sampling; below 1 the ratio compares with the truncated distribution."""
    max_tokens: int | None = None
    """Response tokens at most; None takes the task's own limit."""
    epochs: int = 1
    """Passes over each batch."""
    minibatches: int = 4
    """Optimizer steps in each pass, of the actor and of both critics."""
    kl: KLPenalty = field(default_factory=KLPenalty)
    """The KL to the reference. In the reward it enters reward and cost with opposite signs, so
    its weight in the combined advantage does not depend on the multiplier."""
    entropy_coef: float = 0.0
    """Weight of an entropy bonus."""
    threshold: float = 0.0
    """Largest mean cost d that is allowed: the constraint is J_C ≤ d."""
    lambda_init: float = 1.0
    """The multiplier at the start; the original code has 1."""
    lambda_lr: float = 0.1
    """Step size of the multiplier, in log space; the original code has 0.1."""
    lambda_max: float | None = 5.0
    """Largest multiplier; the original code has 5. None is no bound."""
    lambda_warmup: int = 0
    """Steps at the start in which the multiplier stays as it is."""
    window: int = 128
    """Raw costs over which J_C is taken, the last ones of the run; the original code has 128."""
    ptx_coef: float = 0.0
    """Weight of the supervised loss on data beside the rollouts (PTX); 0 needs none."""
    ptx_task: str = ""
    """Task whose targets the PTX loss imitates; empty is the run's own."""
    ptx_prompts: int = 16
    """Supervised rows in each optimizer step."""
    critic_path: str = ""
    """Where both critics' weights come from, as ``model.path``; empty is the run's model."""
    critic_lr: float | None = None
    """Learning rate of both critics; None is that of the training engine."""
    value_clip: float | None = 0.2
    """Bound of a value's change within a step; None does not clip."""

    def __post_init__(self) -> None:
        if self.samples < 1 or self.epochs < 1 or self.minibatches < 1 or self.window < 1:
            raise ValueError(
                f"samples={self.samples} epochs={self.epochs} minibatches={self.minibatches} "
                f"window={self.window}: all must be at least 1"
            )
        if self.minibatches > self.prompts:
            raise ValueError(
                f"minibatches={self.minibatches} is more than prompts={self.prompts}; "
                "a mini-batch holds whole groups"
            )
        if not self.lambda_init > 0 or self.lambda_lr < 0:
            raise ValueError(
                f"lambda_init={self.lambda_init} lambda_lr={self.lambda_lr}: the first must be "
                "above 0 (the multiplier lives in log space), the second not negative"
            )
        if self.lambda_max is not None and self.lambda_max < self.lambda_init:
            raise ValueError(
                f"lambda_max={self.lambda_max} is below lambda_init={self.lambda_init}"
            )
        if self.ptx_coef < 0 or self.ptx_prompts < 1:
            raise ValueError(f"ptx_coef={self.ptx_coef} ptx_prompts={self.ptx_prompts}")

    def roles(self) -> tuple[Role, ...]:
        """Actor, two critics, two scorers, and a frozen reference where the KL has weight."""
        return (
            Role("actor"),
            Role("critic", path=self.critic_path, lr=self.critic_lr),
            Role("cost_critic", path=self.critic_path, lr=self.critic_lr),
            *self.kl.roles(),
            Role("reward", frozen=True),
            Role("cost", frozen=True),
        )

    def samplings(self) -> tuple[Sampling, ...]:
        """``samples`` responses for each prompt."""
        return (Sampling(n=self.samples, temperature=self.temperature, top_p=self.top_p),)

    def provides(self) -> frozenset[str]:
        """What is there before the update."""
        return self.kl.provides() | {"old_logprobs"}

    def feeds(self) -> dict[str, str]:
        """The supervised rows of PTX, where it has weight."""
        return {"ptx": self.ptx_task} if self.ptx_coef > 0 else {}
