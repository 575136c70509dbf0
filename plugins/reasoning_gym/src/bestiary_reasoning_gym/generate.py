"""Different problems from the generators, in two splits without a common question."""

import inspect
import itertools
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from bestiary.errors import DataError

PATIENCE = 1000
"""Entries in a row without a new question after which a generator is taken to have no more."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A generated problem.

    Args:
        question: the text.
        answer: the reference.
        metadata: of the generator, as JSON values; the verifier needs it.
    """

    question: str
    answer: str
    metadata: Mapping[str, Any]

    def for_verifier(self) -> dict[str, Any]:
        """As the verifier wants it."""
        return {"question": self.question, "answer": self.answer, "metadata": dict(self.metadata)}


def make_dataset(name: str, config: Mapping[str, Any], *, size: int = 1, seed: int = 0) -> Any:  # noqa: ANN401 - no types there
    """A data set of reasoning-gym.

    Raises:
        DataError: for an unknown name or setting, with the nearest right one.
    """
    import reasoning_gym  # type: ignore[import-untyped]  # it ships no types
    from reasoning_gym.factory import DATASETS  # type: ignore[import-untyped]  # likewise

    if name not in DATASETS:
        near = get_close_matches(name, DATASETS, n=1)
        raise DataError(
            f"reasoning_gym has no data set {name!r}",
            hint=f"did you mean {near[0]!r}?" if near else f"it has {', '.join(sorted(DATASETS))}",
        )
    known = sorted(set(inspect.signature(DATASETS[name][1]).parameters) - {"size", "seed"})
    unknown = [key for key in config if key not in known]
    if unknown:
        raise DataError(
            f"reasoning_gym {name}: no setting {', '.join(map(repr, unknown))}",
            hint=f"it has: {', '.join(known)}",
        )
    try:
        return reasoning_gym.create_dataset(name, size=size, seed=seed, **config)
    except (AssertionError, ValueError, TypeError) as error:
        raise DataError(f"reasoning_gym {name} refuses {dict(config)}: {error}") from error


def question_key(entry: Entry) -> str:
    """The same for questions that differ in the order of words and numbers only, not in answer."""
    return " ".join([*sorted(re.findall(r"\w+|[^\w\s]", entry.question)), "=", entry.answer])


def different(
    name: str, config: Mapping[str, Any], *, count: int, seed: int, avoid: frozenset[str]
) -> list[Entry]:
    """Up to ``count`` entries with different questions whose key is not in ``avoid``."""
    found: dict[str, Entry] = {}
    idle = 0
    for entry in _stream(name, config, count, seed):
        new = entry.question not in found and question_key(entry) not in avoid
        idle = 0 if new else idle + 1
        if new:
            found[entry.question] = entry
        if len(found) == count or idle == PATIENCE:
            break
    return list(found.values())


def _stream(name: str, config: Mapping[str, Any], count: int, seed: int) -> Iterator[Entry]:
    """Entries without end, under seeds that never repeat."""
    for round_ in itertools.count():
        # The generators derive the seed of entry i as seed + i: rounds must be far apart.
        start = seed + round_ * (count + 1)
        dataset = make_dataset(name, config, size=count, seed=start)
        for index in range(count):
            raw = dataset[index]
            yield Entry(str(raw["question"]), str(raw["answer"]), _json(name, raw["metadata"]))


def _json(name: str, metadata: Any) -> Mapping[str, Any]:  # noqa: ANN401 - any value
    try:
        plain = json.loads(json.dumps(metadata))
    except (TypeError, ValueError) as error:
        raise DataError(
            f"reasoning_gym {name}: its metadata are no JSON values ({error}), so its problems "
            "cannot travel to reward workers"
        ) from error
    return plain if isinstance(plain, dict) else {}
