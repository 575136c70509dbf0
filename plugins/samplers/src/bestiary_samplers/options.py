"""Options of the samplers."""

from dataclasses import dataclass
from typing import Final, Literal

_COLUMNS: Final = {
    "td_error": frozenset({"returns", "values"}),
    "advantage": frozenset({"advantages"}),
    "kl": frozenset({"old_logprobs", "rollout_logprobs"}),
    "reward_variance": frozenset({"reward"}),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class UniformOptions:
    """Each prompt once an epoch."""

    shuffle: bool = True
    """A new order in each epoch, from (seed, epoch); False keeps the order of the task."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DynamicOptions:
    """Drop groups without a difference in reward and draw others in their place."""

    shuffle: bool = True
    """A new order in each epoch, from (seed, epoch)."""
    max_rounds: int = 10
    """Rounds of one step at most, the first included (``max_num_gen_batches`` elsewhere)."""

    def __post_init__(self) -> None:
        if self.max_rounds < 1:
            raise ValueError(f"max_rounds={self.max_rounds}: must be at least 1")


@dataclass(frozen=True, kw_only=True, slots=True)
class CurriculumOptions:
    """Draw prompts that are neither solved nor hopeless."""

    low: float = 0.05
    """Lowest pass rate that is drawn."""
    high: float = 0.95
    """Highest pass rate that is drawn."""
    success: float = 0.5
    """A sample passes with at least this reward."""
    decay: float = 0.5
    """Weight of the earlier estimate when a prompt comes back, in [0, 1)."""
    retry_epochs: int = 3
    """A prompt outside of the window is tried again after this many epochs."""

    def __post_init__(self) -> None:
        if not 0.0 <= self.low <= self.high <= 1.0:
            raise ValueError(f"low={self.low} high={self.high}: 0 <= low <= high <= 1 is wanted")
        if not 0.0 <= self.decay < 1.0:
            raise ValueError(f"decay={self.decay}: must be in [0, 1)")
        if self.retry_epochs < 1:
            raise ValueError(f"retry_epochs={self.retry_epochs}: must be at least 1")


@dataclass(frozen=True, kw_only=True, slots=True)
class PrioritisedOptions:
    """Draw prompts by what the learner found in them (Schaul et al. 2016, arXiv:1511.05952)."""

    by: Literal["td_error", "advantage", "kl", "reward_variance"] = "td_error"
    """Priority of a prompt, the mean over its responses' tokens: |return - value| (needs a
    critic), |advantage|, |log π_old - log μ| (how far the policy moved since it sampled), or the
    variance of its rewards."""
    alpha: float = 0.6
    """P ∝ priority^alpha; 0 is uniform. The paper has 0.6 to 0.7."""
    beta: float = 0.4
    """Strength of the importance weights (N·P)^-beta at the start, which go into
    ``sample_weight``; 0 has none."""
    beta_steps: int = 100
    """Steps over which beta rises to 1."""
    epsilon: float = 1e-3
    """Added to each priority, so that every prompt comes back."""
    uniform: float = 0.0
    """Share u of draws that are uniform: P = (1 - u)·P + u/N; 1 ignores the priorities."""

    def __post_init__(self) -> None:
        if self.by not in _COLUMNS:
            raise ValueError(f"by={self.by!r}: choose one of {', '.join(_COLUMNS)}")
        if not (self.alpha >= 0.0 and 0.0 <= self.beta <= 1.0 and self.epsilon > 0):
            raise ValueError(
                f"alpha={self.alpha} beta={self.beta} epsilon={self.epsilon}: alpha must not be "
                "negative, beta in [0, 1], epsilon above 0"
            )
        if self.beta_steps < 1:
            raise ValueError(f"beta_steps={self.beta_steps}: must be at least 1")
        if not 0.0 <= self.uniform <= 1.0:
            raise ValueError(f"uniform={self.uniform}: must be in [0, 1]")

    @property
    def requires(self) -> frozenset[str]:
        """Columns of the learned batch that the priority is made of."""
        return _COLUMNS[self.by]


@dataclass(frozen=True, kw_only=True, slots=True)
class OversampleOptions:
    """Draw more prompts than are wanted and train on the most informative groups."""

    factor: float = 2.0
    """Prompts drawn for each one that is kept."""

    def __post_init__(self) -> None:
        if not self.factor >= 1.0:
            raise ValueError(f"factor={self.factor}: must be at least 1")


@dataclass(frozen=True, kw_only=True, slots=True)
class BestOfNOptions:
    """Train on the best responses of each group, and on the worst if wanted."""

    best: int = 1
    """Responses with the highest reward that stay trainable."""
    worst: int = 0
    """Responses with the lowest reward that stay trainable."""

    def __post_init__(self) -> None:
        if self.best < 0 or self.worst < 0 or self.best + self.worst < 1:
            raise ValueError(
                f"best={self.best} worst={self.worst}: neither negative, at least 1 together"
            )
