"""Options of the task and of its reward."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

Extract = Literal["last_number", "last_line", "text"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ReasoningGymOptions:
    """Which generator, how it is set up, and how many problems."""

    dataset: str = "products"
    """Name of the generator, as in ``products``, ``chain_sum`` or ``gcd``."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of the generator, as in ``{max_digits: 1, max_terms: 2}``."""
    size: int = 1000
    """Training problems at most; fewer where the generator has no more different ones."""
    eval_size: int = 32
    """Held-out problems."""
    seed: int = 0
    """Of the generator; the same in every run, so that runs train on the same problems."""
    extract: Extract = "last_number"
    """What of a response is the answer: its last number, its last line that is not empty, or all of
    it."""
    instruction: str = ""
    """Put after the question, on a line of its own."""
    chat: bool = True
    """Give the question as a message of the user (rendered where there is a chat template)."""
    max_tokens: int = 32
    """Response tokens at most."""

    def __post_init__(self) -> None:
        if min(self.size, self.eval_size, self.max_tokens) < 1:
            raise ValueError(
                f"size={self.size} eval_size={self.eval_size} max_tokens={self.max_tokens}: "
                "each must be at least 1"
            )
        ways = get_args(Extract)
        if self.extract not in ways:
            raise ValueError(f"extract={self.extract!r}: choose from {', '.join(ways)}")
        taken = {"size", "seed"} & set(self.config)
        if taken:
            raise ValueError(f"config has {sorted(taken)}; set them as options of the task")


@dataclass(frozen=True, kw_only=True, slots=True)
class VerifierOptions:
    """How the verifier's credit becomes a reward."""

    partial: bool = False
    """Give partial credit too; else only full credit counts."""
