"""Series for the plots, taken from records: pure functions, no drawing."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from bestiary.tracking.text import phase_shares

Record = Mapping[str, Any]

PHASES = ("rollout", "score", "update", "sync", "eval", "other")


def series(records: Sequence[Record], name: str) -> tuple[list[int], list[float]]:
    """Steps and values of one metric, where it was measured and finite."""
    pairs = [(r["step"], float(r[name])) for r in records if _known(r.get(name))]
    return [step for step, _ in pairs], [value for _, value in pairs]


def seconds(records: Sequence[Record]) -> dict[int, float]:
    """Seconds of work up to the end of each step: steps and evaluations added up.

    Time between the attempts of a resumed run, and work that was abandoned, do not count.
    """
    total = 0.0
    at = {}
    for record in records:
        for name in ("time/step_s", "time/eval_s"):
            value = record.get(name)
            total += float(value) if value is not None and _known(value) else 0.0
        at[record["step"]] = total
    return at


def moving_mean(values: Sequence[float], window: int) -> list[float]:
    """Centred mean over at most ``window`` values; shorter at both ends."""
    half = max(window, 1) // 2
    return [
        sum(part) / len(part)
        for part in (values[max(0, i - half) : i + half + 1] for i in range(len(values)))
    ]


def shares(records: Sequence[Record], groups: int = 60) -> tuple[list[float], list[list[float]]]:
    """Fraction of wall time of each phase over the run.

    Args:
        records: in the order of steps.
        groups: neighbouring steps are put together into at most this many, so that an
            evaluation every ten steps is an even band.

    Returns:
        (mean step of each group, one list for each of ``PHASES``).
    """
    timed = [r for r in records if _known(r.get("time/step_s"))]
    if not timed:
        return [], [[] for _ in PHASES]
    size = math.ceil(len(timed) / groups)
    size = max(size, _eval_gap(timed))
    steps: list[float] = []
    bands: list[list[float]] = [[] for _ in PHASES]
    for start in range(0, len(timed), size):
        part = timed[start : start + size]
        if start and 2 * len(part) < size:  # a short rest says little and would swing
            break
        found = phase_shares(_added(part))
        steps.append(sum(r["step"] for r in part) / len(part))
        for band, name in zip(bands, PHASES, strict=True):
            band.append(found.get(name, 0.0))
    return steps, bands


def _added(records: Sequence[Record]) -> dict[str, float]:
    total: dict[str, float] = {}
    for record in records:
        for name, value in record.items():
            if name.startswith("time/") and _known(value):
                total[name] = total.get(name, 0.0) + float(value)
    return total


def _eval_gap(records: Sequence[Record]) -> int:
    """Records from one evaluation to the next; 1 where none is timed."""
    count = sum(1 for r in records if _known(r.get("time/eval_s")))
    return max(1, round(len(records) / count)) if count > 1 else 1


def _known(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
