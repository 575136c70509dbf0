"""Options of the tasks."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True, slots=True)
class AdditionOptions:
    """Sums of two numbers with equally many digits."""

    digits: int = 2
    """Digits of each operand, 1 to 3: two digits are 10 to 99."""
    eval_size: int = 512
    """Problems that are held out."""

    def __post_init__(self) -> None:
        if self.digits not in (1, 2, 3):
            raise ValueError(f"digits={self.digits}: 1, 2 or 3 is wanted")
        count = len(self.operands()) ** 2
        if not 1 <= self.eval_size <= count // 2:
            raise ValueError(
                f"eval_size={self.eval_size}: 1 to {count // 2} of the {count} problems can be "
                "held out"
            )

    def operands(self) -> range:
        """All operands."""
        return range(10 ** (self.digits - 1) if self.digits > 1 else 0, 10**self.digits)


@dataclass(frozen=True, kw_only=True, slots=True)
class ShareOptions:
    """The share of the letter a in a response."""

    length: int = 10
    """Letters that count; the share is of these. Rewards take the task's where it says so."""

    def __post_init__(self) -> None:
        if self.length < 1:
            raise ValueError(f"length={self.length}: must be at least 1")


@dataclass(frozen=True, kw_only=True, slots=True)
class TradeoffOptions(ShareOptions):
    """Words over a and b: the more a, the more reward, and the more cost."""

    size: int = 512
    """Training prompts."""
    eval_size: int = 64
    """Held-out prompts."""
    start: float = 0.3
    """Share of a in the texts that supervised training imitates."""
    seed: int = 0
    """Of those texts."""

    def __post_init__(self) -> None:
        ShareOptions.__post_init__(self)  # super() without arguments fails in a slots dataclass
        if self.size < 1 or self.eval_size < 1 or self.size + self.eval_size > 10_000:
            raise ValueError(
                f"size={self.size} eval_size={self.eval_size}: both at least 1, together at most "
                "10000"
            )
        if not 0.0 <= self.start <= 1.0:
            raise ValueError(f"start={self.start}: must be in [0, 1]")


@dataclass(frozen=True, kw_only=True, slots=True)
class PreferencesOptions(TradeoffOptions):
    """Pairs of words over a and b, ordered by reward or by cost, with safety labels."""

    by: Literal["reward", "cost"] = "reward"
    """``reward`` prefers the word with more a, ``cost`` the one with fewer."""
    threshold: float = 0.36
    """A word is safe where its squared share of a is at most this."""

    def __post_init__(self) -> None:
        TradeoffOptions.__post_init__(self)
        if self.by not in ("reward", "cost"):
            raise ValueError(f"by={self.by!r}: choose reward or cost")
        if not 0.0 <= self.threshold <= 1.0:
            raise ValueError(f"threshold={self.threshold}: must be in [0, 1]")
