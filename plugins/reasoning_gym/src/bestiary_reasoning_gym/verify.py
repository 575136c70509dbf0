"""Answers out of responses, and verifiers behind guards."""

import math
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from bestiary_reasoning_gym.options import Extract

_NUMBER = re.compile(r"[-+\u2212]?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?")

ACCEPT_ANYTHING = frozenset({"game_of_life_halting"})
"""Data sets whose verifier gives full credit for any text."""

EVALUATES = frozenset(
    {
        "binary_matrix",
        "composite",
        "countdown",
        "intermediate_integration",
        "n_queens",
        "polynomial_multiplication",
        "puzzle24",
        "simple_integration",
        "spiral_matrix",
        "string_insertion",
    }
)
"""Data sets whose verifier runs the answer as Python (``eval``, ``parse_expr``) or may hold one of
these: what a model writes must not reach them, except as a number."""

GARBAGE = ("", "zebra", "I do not know.", "-987654321", "[]", "{", "True False Yes No", "\u221e")
"""Answers that no verifier may give full credit for, unless it is the reference itself."""


def extract_answer(response: str, how: Extract) -> str:
    """What of a response is its answer; empty when there is none.

    A number is written as plainly as possible: no thousands commas, no ``+``, no ``.0``.
    """
    if how == "text":
        return response.strip()
    if how == "last_line":
        lines = [line.strip() for line in response.splitlines() if line.strip()]
        return lines[-1] if lines else ""
    found = list(_NUMBER.finditer(response))
    if not found:
        return ""
    last, before = found[-1].group(), response[: found[-1].start()]
    if last[0] in "-+\u2212" and before and (before[-1].isalnum() or before[-1] in ")]"):
        last = last[1:]  # the sign joins two numbers
    return plain_number(last)


def plain_number(text: str) -> str:
    """``+1,200.0`` → ``1200``; a text that is no number stays as it is."""
    if not _NUMBER.fullmatch(text.strip()):
        return text
    number = Decimal(text.strip().replace(",", "").replace("\u2212", "-"))
    whole = number.to_integral_value()
    if number != whole:
        return str(number)
    return format(whole, "f") if whole else "0"


def credit(dataset: Any, answer: str, entry: Mapping[str, Any]) -> float:  # noqa: ANN401
    """What the verifier gives, from 0 to 1; 0 where it raises or returns something else."""
    try:
        given = float(dataset.score_answer(answer, dict(entry)))
        return min(max(given, 0.0), 1.0) if not math.isnan(given) else 0.0
    except Exception:
        # Some verifiers parse the answer and raise on garbage; that is a wrong answer.
        return 0.0


def accepts_garbage(dataset: Any, entry: Mapping[str, Any]) -> str | None:  # noqa: ANN401
    """A strange answer that gets full credit, or None."""
    for answer in GARBAGE:
        if answer != str(entry["answer"]).strip() and credit(dataset, answer, entry) >= 1.0:
            return answer
    return None
