"""Options of the scorers: light, so that a configuration is checked without torch."""

import re
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True, slots=True)
class ClassifierOptions:
    """A model that reads prompt and response and says one number."""

    path: str = ""
    """Folder, or name of a model in the local cache of Hugging Face: a sequence classifier, or a
    reward or cost model that bestiary trained (a folder with value_head.safetensors). An adapter
    of peft is merged into its base (package peft). Must be given."""
    label: int = -1
    """Which logit of a classifier; -1 is the last one."""
    output: Literal["logit", "sigmoid", "softmax"] = "logit"
    """The number itself, its sigmoid, or the probability of the label among all."""
    template: str = "{prompt}{response}"
    """The text that is read; names ``{prompt}`` and ``{response}``. The prompt is the text that
    the policy saw."""
    chat: bool = False
    """Put the prompt's messages and the response through the scorer's own chat template."""
    mean: float = 0.0
    """Taken off each score: the scale of a reward model is arbitrary."""
    std: float = 1.0
    """Divides each score."""
    batch: int = 16
    """Texts at once, at most."""
    tokens: int = 16_384
    """Tokens at once, padding included; a longer text goes alone."""
    max_tokens: int = 1024
    """Longer texts lose their beginning; never more than the model can take."""
    dtype: Literal["fp32", "bf16"] = "fp32"
    """Dtype of computation."""
    device: str = "cpu"
    """``cpu`` or ``cuda:0``."""

    def __post_init__(self) -> None:
        if min(self.batch, self.tokens, self.max_tokens) < 1 or not self.std > 0:
            raise ValueError(
                f"batch={self.batch} tokens={self.tokens} max_tokens={self.max_tokens} "
                f"std={self.std}: the first three must be at least 1, the last above 0"
            )
        try:
            self.template.format(prompt="", response="")
        except (KeyError, IndexError, ValueError) as error:
            raise ValueError(
                f"template={self.template!r}: it may name {{prompt}} and {{response}} only"
            ) from error
        if not self.chat and self.template.count("{response}") != 1:
            raise ValueError(
                f"template={self.template!r}: it must name {{response}} once, or nothing of the "
                "policy is scored"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class LengthOptions:
    """Tokens of the response: a cost, or with a negative scale a reward for short answers."""

    target: int = 0
    """Tokens that are free."""
    scale: float = 1.0
    """Multiplies the tokens beyond the target."""
    cap: float | None = None
    """Largest size of the score; None is no bound."""

    def __post_init__(self) -> None:
        if self.target < 0 or (self.cap is not None and not self.cap > 0):
            raise ValueError(
                f"target={self.target} cap={self.cap}: the target must not be negative, the cap "
                "above 0"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class PatternOptions:
    """Occurrences of a regular expression."""

    pattern: str = ""
    """The expression, in Python's syntax; must be given."""
    scale: float = 1.0
    """Of each occurrence."""
    most: int = 1
    """Occurrences that count at most."""

    def __post_init__(self) -> None:
        try:
            re.compile(self.pattern)
        except re.error as error:
            raise ValueError(
                f"pattern={self.pattern!r} is no regular expression: {error}"
            ) from error
        if self.most < 1:
            raise ValueError(f"most={self.most}: must be at least 1")


@dataclass(frozen=True, kw_only=True, slots=True)
class OverlongOptions:
    """DAPO's soft punishment of overlong responses (arXiv:2503.14476, eq. 13)."""

    limit: int = 0
    """Tokens at which the punishment is whole; must be given."""
    buffer: int = 1
    """Tokens before the limit over which it grows."""

    def __post_init__(self) -> None:
        if self.limit and not 1 <= self.buffer <= self.limit:
            raise ValueError(f"buffer={self.buffer}: must be in 1 to limit={self.limit}")


@dataclass(frozen=True, kw_only=True, slots=True)
class SentimentOptions:
    """Compound sentiment of the response in [-1, 1] (VADER)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ToxicityOptions:
    """Probability of abusive wording in [0, 1] (alt-profanity-check); wording, not harm.

    That package brings its model as a pickle of scikit-learn; it is read from the installed
    package only, never from a path.
    """
