"""The task: problems of one generator."""

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, Literal

from bestiary.errors import DataError
from bestiary.protocols import Problem
from bestiary_reasoning_gym.generate import Entry, different, make_dataset, question_key
from bestiary_reasoning_gym.options import ReasoningGymOptions
from bestiary_reasoning_gym.verify import (
    ACCEPT_ANYTHING,
    EVALUATES,
    accepts_garbage,
    credit,
    extract_answer,
    plain_number,
)

_TRAIN_SEED = 1_000_000_007
"""Keeps the seeds of the training split away from those of the held-out one."""


class ReasoningGym:
    """Problems of one generator, with a held-out split that shares no question with training.

    Args:
        options: which generator.

    Raises:
        DataError: for an unknown generator or setting, one whose verifier accepts anything, or
            too few different questions.
    """

    reward = "reasoning_gym"
    stop: tuple[str, ...] = ()

    def __init__(self, options: ReasoningGymOptions) -> None:
        self.options = options
        self.max_tokens = options.max_tokens
        name, config = options.dataset, dict(options.config)
        if name in ACCEPT_ANYTHING:
            raise _accepts_anything(name, "any text")
        if name in EVALUATES and options.extract != "last_number":
            raise DataError(
                f"reasoning_gym {name}: its verifier runs the answer as Python code, so text "
                f"that a model wrote must not reach it (extract={options.extract})",
                hint="choose another data set",
            )
        self._verifier = make_dataset(name, config)
        held = different(
            name, config, count=options.eval_size, seed=options.seed, avoid=frozenset()
        )
        if len(held) < options.eval_size:
            raise DataError(
                f"reasoning_gym {name} has only {len(held)} different questions under {config}, "
                f"eval_size={options.eval_size} are wanted",
                hint="lower task.eval_size or widen task.config",
            )
        train = different(
            name,
            config,
            count=options.size,
            seed=options.seed + _TRAIN_SEED,
            avoid=frozenset(question_key(entry) for entry in held),
        )
        if not train:
            raise DataError(
                f"reasoning_gym {name}: all different questions under {config} are held out",
                hint="lower task.eval_size or widen task.config",
            )
        self._problems = {
            "train": tuple(self._problem(entry) for entry in train),
            "eval": tuple(self._problem(entry) for entry in held),
        }

    def problems(self, split: Literal["train", "eval"]) -> Sequence[Problem]:
        """All problems of a split, in the order of the generator."""
        return self._problems[split]

    def _problem(self, entry: Entry) -> Problem:
        self._check(entry)
        options, text = self.options, entry.question
        if options.instruction:
            text = f"{text}\n{options.instruction}"
        extra: dict[str, Any] = {
            "dataset": options.dataset,
            "config": dict(options.config),
            "extract": options.extract,
            "question": entry.question,
            "metadata": dict(entry.metadata),
        }
        return Problem(
            uid=f"{options.dataset}-{blake2b(entry.question.encode(), digest_size=8).hexdigest()}",
            prompt=({"role": "user", "content": text},) if options.chat else text,
            answer=entry.answer,
            target=entry.answer,
            extra=extra,
        )

    def _check(self, entry: Entry) -> None:
        """The reference must get full credit the way a response would, and garbage must not."""
        name, how = self.options.dataset, self.options.extract
        asked = entry.for_verifier()
        answer = extract_answer(entry.answer, how)
        right = plain_number(answer) == plain_number(entry.answer)
        if not right and credit(self._verifier, answer, asked) < 1.0:
            hint = "set task.extract=last_line or text" if how != "text" else ""
            raise DataError(
                f"reasoning_gym {name}: its own answer {entry.answer!r} gets no full credit "
                f"when read as {how} ({answer!r})",
                hint=hint,
            )
        strange = accepts_garbage(self._verifier, asked)
        if strange is not None:
            raise _accepts_anything(name, repr(strange))


def _accepts_anything(name: str, what: str) -> DataError:
    return DataError(
        f"reasoning_gym {name}: its verifier gives full credit for {what}, so it cannot be a "
        "reward",
        hint="choose another data set",
    )
