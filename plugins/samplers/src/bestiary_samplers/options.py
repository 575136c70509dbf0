"""Options of the samplers."""

from dataclasses import dataclass


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
