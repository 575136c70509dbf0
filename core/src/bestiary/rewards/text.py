"""Built-in rewards on text: equality, the last number, and form."""

import re
from collections import deque
from collections.abc import Sequence
from decimal import Decimal

from bestiary.protocols import Sample
from bestiary.rewards.options import ExactMatchOptions, FormatOptions, LastNumberOptions

_NUMBER = re.compile(
    r"[-+\u2212]?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?(?:[eE][-+]?\d{1,3}(?!\d))?"
)
"""Exponents have three digits at most: with more, arithmetic on a Decimal overflows and raises."""


def accepted(sample: Sample) -> tuple[str, ...]:
    """The answers that count as right: the reference, and ``extra["answers"]`` where it is."""
    return tuple(dict.fromkeys((sample.answer, *map(str, sample.extra.get("answers", ())))))


def parse_number(text: str) -> Decimal | None:
    """A text that is one number; signs, decimals, exponents and thousands commas are read."""
    found = _NUMBER.fullmatch(text.strip())
    return _decimal(found.group()) if found else None


def last_number(text: str) -> Decimal | None:
    """The last number in a text; None without one.

    A sign counts where it does not join two numbers (``5-3`` ends in 3, ``= -3`` in −3).
    """
    found = deque(_NUMBER.finditer(text), maxlen=1)
    if not found:
        return None
    last = found[0]
    number = last.group()
    before = text[: last.start()]
    if number[0] in "-+\u2212" and before and (before[-1].isalnum() or before[-1] in ")]"):
        number = number[1:]
    return _decimal(number)


def _decimal(text: str) -> Decimal:
    return Decimal(text.replace(",", "").replace("\u2212", "-"))


class ExactMatch:
    """1 where the response equals an accepted answer after stripping both, else 0.

    Args:
        options: how to compare.
    """

    def __init__(self, options: ExactMatchOptions) -> None:
        self.options = options

    def __call__(self, samples: Sequence[Sample]) -> list[float]:
        """One number for each sample."""
        return [float(self._equal(sample)) for sample in samples]

    def _equal(self, sample: Sample) -> bool:
        fold = str.casefold if self.options.ignore_case else str
        response = fold(sample.response.strip())
        return any(response == fold(answer.strip()) for answer in accepted(sample))


class LastNumber:
    """1 where the last number of the response equals an accepted answer as a number, else 0.

    Args:
        options: how to compare.
    """

    def __init__(self, options: LastNumberOptions) -> None:
        self.tolerance = Decimal(str(options.tolerance))

    def __call__(self, samples: Sequence[Sample]) -> list[float]:
        """One number for each sample.

        Raises:
            ValueError: for an answer that is no number; every sample would score 0 unseen.
        """
        return [float(self._equal(sample)) for sample in samples]

    def _equal(self, sample: Sample) -> bool:
        wanted = [parse_number(answer) for answer in accepted(sample)]
        numbers = [number for number in wanted if number is not None]
        if not numbers:
            raise ValueError(f"the answer {sample.answer!r} of {sample.uid} is no number")
        found = last_number(sample.response)
        return found is not None and any(abs(found - n) <= self.tolerance for n in numbers)


class Format:
    """1 where the whole response matches a pattern, else 0.

    Args:
        options: the pattern.
    """

    def __init__(self, options: FormatOptions) -> None:
        self.pattern = re.compile(options.pattern, re.DOTALL)

    def __call__(self, samples: Sequence[Sample]) -> list[float]:
        """One number for each sample."""
        return [float(self.pattern.fullmatch(sample.response) is not None) for sample in samples]
