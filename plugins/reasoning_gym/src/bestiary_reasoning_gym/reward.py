"""The reward: the verifier of the problem's own generator."""

import json
from collections.abc import Sequence
from typing import Any

from bestiary.protocols import Sample
from bestiary_reasoning_gym.generate import make_dataset
from bestiary_reasoning_gym.options import VerifierOptions
from bestiary_reasoning_gym.verify import credit, extract_answer, plain_number


class VerifierReward:
    """1 for an answer with full credit, else 0 (or the partial credit, if that is asked for).

    An answer that equals the reference as a number needs no verifier; others may still be right
    where a question has several answers.

    Args:
        options: how credit becomes a reward.
    """

    def __init__(self, options: VerifierOptions) -> None:
        self.options = options
        self._verifiers: dict[str, Any] = {}

    def __call__(self, samples: Sequence[Sample]) -> list[float]:
        """One number for each sample."""
        return [self._score(sample) for sample in samples]

    def _score(self, sample: Sample) -> float:
        extra = sample.extra
        answer = extract_answer(sample.response, extra["extract"])
        if not answer:
            return 0.0
        if plain_number(answer) == plain_number(sample.answer):
            return 1.0
        entry = {
            "question": extra["question"],
            "answer": sample.answer,
            "metadata": extra["metadata"],
        }
        given = credit(self._verifier(extra["dataset"], extra["config"]), answer, entry)
        return given if given >= 1.0 or self.options.partial else 0.0

    def _verifier(self, name: str, config: dict[str, Any]) -> Any:  # noqa: ANN401 - no types there
        key = f"{name} {json.dumps(config, sort_keys=True)}"
        if key not in self._verifiers:
            self._verifiers[key] = make_dataset(name, config)
        return self._verifiers[key]
