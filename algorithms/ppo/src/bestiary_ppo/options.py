"""Options of PPO: light, so that roles and requirements can be read without torch."""

from dataclasses import dataclass, field
from typing import ClassVar

from bestiary.kit import KLPenalty
from bestiary.protocols import AlgorithmOptions, Role, Sampling


@dataclass(frozen=True, kw_only=True, slots=True)
class PPOOptions(AlgorithmOptions):
    """Proximal policy optimisation with a critic (arXiv:1707.06347, arXiv:2203.02155)."""

    components: ClassVar[dict[str, str]] = {"advantage": "gae", "loss": "clip"}

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
    """Optimizer steps in each pass, of actor and critic alike; verl has 4 of 256 prompts."""
    kl: KLPenalty = field(default_factory=KLPenalty)
    """The KL to the reference."""
    entropy_coef: float = 0.0
    """Weight of an entropy bonus, on the tempered distribution."""
    critic_path: str = ""
    """Where the critic's weights come from, as ``model.path``; empty is the run's model. A folder
    of a trained reward model starts with its value head."""
    critic_lr: float | None = None
    """Learning rate of the critic; None is that of the training engine. verl has 10 times the
    actor's."""
    critic_warmup: int = 0
    """Steps at the start in which only the critic is trained."""
    shared_trunk: bool = False
    """One model with two heads instead of an actor and a critic."""
    value_coef: float = 0.1
    """Weight of the value loss under a shared trunk (TRL: 0.1)."""
    value_clip: float | None = 0.2
    """Bound of a value's change within a step; None does not clip."""

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
        if self.critic_warmup < 0:
            raise ValueError(f"critic_warmup={self.critic_warmup}: must not be negative")
        if self.shared_trunk and (self.critic_path or self.critic_lr or self.critic_warmup):
            raise ValueError(
                "shared_trunk=true has one model: critic_path, critic_lr and critic_warmup have "
                "no meaning; leave them out"
            )

    def roles(self) -> tuple[Role, ...]:
        """Actor, critic, a scorer, and a frozen reference where the KL has weight."""
        critic = Role("critic", path=self.critic_path, lr=self.critic_lr)
        if self.shared_trunk:
            critic = Role("critic", model="actor")
        actor = Role("actor", model="actor")
        return (actor, critic, *self.kl.roles(), Role("reward", frozen=True))

    def samplings(self) -> tuple[Sampling, ...]:
        """``samples`` responses for each prompt."""
        return (Sampling(n=self.samples, temperature=self.temperature, top_p=self.top_p),)

    def provides(self) -> frozenset[str]:
        """What is there before the update."""
        return self.kl.provides() | {"old_logprobs"}
