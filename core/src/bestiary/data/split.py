"""Held-out splits that never occur in training."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

from bestiary.protocols import Problem


@dataclass(frozen=True, slots=True)
class Split:
    """Problems to train on and problems to evaluate on, without a common prompt.

    Args:
        train: to train on.
        evaluation: held out.
        leaked: problems that were taken out of ``train`` because their prompt is held out.
    """

    train: tuple[Problem, ...]
    evaluation: tuple[Problem, ...]
    leaked: int = 0


def unit_hash(text: str) -> float:
    """A number in [0, 1) that depends on ``text`` only, equal on every machine."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big") / 2**64


def prompt_key(problem: Problem) -> str:
    """What makes two prompts the same."""
    prompt = problem.prompt
    if isinstance(prompt, str):
        return prompt
    return json.dumps([dict(message) for message in prompt], sort_keys=True)


def split_by_uid(problems: Sequence[Problem], fraction: float) -> Split:
    """Hold out about ``fraction`` of the problems, chosen by the hash of their uid.

    A problem keeps its side when others are added or removed. With a positive fraction at least
    one problem is held out, and at least one is left.
    """
    if fraction <= 0.0 or len(problems) < 2:
        return Split(tuple(problems), ())
    ranked = sorted(problems, key=lambda problem: unit_hash(problem.uid))
    count = sum(unit_hash(problem.uid) < fraction for problem in ranked)
    held = {problem.uid for problem in ranked[: min(max(count, 1), len(ranked) - 1)]}
    return without_leaks(
        [problem for problem in problems if problem.uid not in held],
        [problem for problem in problems if problem.uid in held],
    )


def without_leaks(train: Sequence[Problem], evaluation: Sequence[Problem]) -> Split:
    """Take out of ``train`` what ``evaluation`` holds too."""
    held = {prompt_key(problem) for problem in evaluation}
    kept = tuple(problem for problem in train if prompt_key(problem) not in held)
    return Split(kept, tuple(evaluation), len(train) - len(kept))
