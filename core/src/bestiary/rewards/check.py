"""What a reward returned → one checked entry a sample, or an error that names the function."""

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

from bestiary.errors import Owner, RewardError
from bestiary.protocols import Sample, Score

Span = tuple[int, int, float]


@dataclass(frozen=True, slots=True)
class Checked:
    """One score after the checks.

    Args:
        value: finite; 0 where the sample is invalid.
        valid: False where the function returned None or NaN: such a sample is outside of all
            statistics and gets no gradient.
        parts: finite numbers by name.
        spans: (start, end, value) within the response.
    """

    value: float
    valid: bool
    parts: Mapping[str, float] = field(default_factory=dict)
    spans: tuple[Span, ...] = ()


INVALID = Checked(0.0, False)


def check_scores(
    returned: Any,  # noqa: ANN401 - whatever the function returned
    samples: Sequence[Sample],
    name: str,
    owner: Owner | None = None,
) -> list[Checked]:
    """Check what a reward function returned.

    Args:
        returned: by the function.
        samples: that it was called with.
        name: of the function.
        owner: who provides it.

    Raises:
        RewardError: for a bare number, a wrong number of entries, or an entry that is no score,
            naming the function, what it gave and what is wanted.
    """
    entries = _entries(returned, len(samples), name, owner)
    if len(entries) != len(samples):
        raise RewardError(
            f"reward {name!r} returned {len(entries)} scores, expected {len(samples)} "
            "(one for each sample)",
            hint="return None for a sample that cannot be scored",
            owner=owner,
        )
    return [
        _check(entry, sample, place, name, owner)
        for place, (entry, sample) in enumerate(zip(entries, samples, strict=True))
    ]


def _entries(returned: Any, n: int, name: str, owner: Owner | None) -> list[Any]:  # noqa: ANN401
    if hasattr(returned, "tolist"):  # numpy arrays and tensors; a 0-d one becomes a bare number
        returned = returned.tolist()
    bare = returned is None or isinstance(returned, (str, bytes, Mapping, Score, Real))
    if bare or not isinstance(returned, Iterable):
        raise RewardError(
            f"reward {name!r} returned a single {type(returned).__name__}, "
            f"expected a list of {n} scores (one for each sample)",
            hint="it is called with all samples of a batch at once",
            owner=owner,
        )
    return list(returned)


def _check(entry: Any, sample: Sample, place: int, name: str, owner: Owner | None) -> Checked:  # noqa: ANN401
    if hasattr(entry, "item") and not isinstance(entry, Score):
        with suppress(ValueError, RuntimeError):  # more than one element: refused below
            entry = entry.item()
    if entry is None:
        return INVALID
    score = entry if isinstance(entry, Score) else Score(entry)
    where = f"reward {name!r}, sample {place} ({sample.uid})"
    value = _number(score.value, f"{where}: score", owner)
    if math.isnan(value):
        return INVALID
    parts = {str(k): _number(v, f"{where}: part {k!r}", owner) for k, v in score.parts.items()}
    for start, end, _ in score.spans:
        if not 0 <= start < end <= sample.response_len:
            raise RewardError(
                f"{where}: span ({start}, {end}) is not within its {sample.response_len} tokens",
                owner=owner,
            )
    spans = tuple((int(a), int(b), _number(v, f"{where}: span", owner)) for a, b, v in score.spans)
    return Checked(value, True, parts, spans)


def _number(value: Any, what: str, owner: Owner | None) -> float:  # noqa: ANN401
    if not isinstance(value, Real):
        raise RewardError(
            f"{what} is a {type(value).__name__} ({value!r:.60}), a number is wanted",
            hint="return a number, a Score or None for each sample",
            owner=owner,
        )
    number = float(value)
    if math.isinf(number):
        raise RewardError(f"{what} is infinite", hint="return None for no score", owner=owner)
    return number
