"""Answers out of responses, and verifiers behind guards."""

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from bestiary_reasoning_gym.options import Extract

_NUMBER = re.compile(r"[-+\u2212]?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?")

ACCEPT_ANYTHING = frozenset({"game_of_life_halting"})
"""Data sets whose verifier gives full credit for any text."""

GARBAGE = ("", "zebra", "I do not know.", "-987654321", "[]", "{", "True False Yes No", "\u221e")
"""Answers that no verifier may give full credit for, unless it is the reference itself."""


def extract_answer(response: str, how: Extract) -> str:
    """What of a response is its answer; empty when there is none.

    A number is written as plainly as possible: no thousands commas, no ``+``, no ``.0``.
    """
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
    return str(int(whole)) if number == whole else str(number)


def credit(dataset: Any, answer: str, entry: Mapping[str, Any]) -> float:  # noqa: ANN401
    """What the verifier gives, from 0 to 1; 0 where it raises or returns something else."""
    try:
        given = dataset.score_answer(answer, dict(entry))
        return min(max(float(given), 0.0), 1.0) if given == given else 0.0
    except Exception:
        # Some verifiers parse the answer and raise on garbage; that is a wrong answer.
        return 0.0


def accepts_garbage(dataset: Any, entry: Mapping[str, Any]) -> str | None:  # noqa: ANN401
    """A strange answer that gets full credit, or None."""
    for answer in GARBAGE:
        if answer != str(entry["answer"]).strip() and credit(dataset, answer, entry) >= 1.0:
            return answer
    return None
