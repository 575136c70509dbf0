"""Small pure functions that turn numbers into text for the display and the tables."""

import math
import unicodedata
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

_BLOCKS = "▁▂▃▄▅▆▇█"


def number(value: float | None, digits: int = 3) -> str:
    """A number in few characters: ``0.413``, ``4,120``, ``1.2e-05``; ``-`` where there is none."""
    if value is None:
        return "-"
    if not math.isfinite(value):
        return str(value)
    size = abs(value)
    if size >= 1000 or value == int(value):
        return f"{value:,.0f}"
    if size < 10 ** -(digits + 1):
        return f"{value:.1e}"
    return f"{value:.{digits}f}" if size < 10 else f"{value:.{max(digits - 2, 0)}f}"


def duration(seconds: float) -> str:
    """``0:07``, ``12:30`` or ``1:02:03``."""
    if not math.isfinite(seconds):
        return "-"
    whole = max(0, int(seconds + 0.5))
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def sparkline(values: Sequence[float | None], width: int) -> str:
    """The course of a quantity in ``width`` characters, scaled to its own range.

    More values than characters are averaged in equal parts; values that are missing or not
    finite are left out; a constant is drawn in the middle.
    """
    known = [v for v in values if v is not None and math.isfinite(v)]
    if not known or width < 1:
        return ""
    if len(known) > width:
        edges = [i * len(known) // width for i in range(width + 1)]
        parts = [known[a:b] for a, b in pairwise(edges)]
        known = [sum(part) / len(part) for part in parts]
    low, high = min(known), max(known)
    if high <= low:
        return _BLOCKS[3] * len(known)
    top = len(_BLOCKS) - 1
    return "".join(_BLOCKS[round((v - low) / (high - low) * top)] for v in known)


def clean(text: object, limit: int = 120) -> str:
    """One line without control characters, cut to ``limit`` characters.

    Line ends and tabs are shown as ``⏎`` and a space, so a prompt cannot move the cursor.
    """
    line = str(text).strip().replace("\r\n", "\n").replace("\n", "⏎").replace("\t", " ")
    line = "".join("�" if unicodedata.category(c) in ("Cc", "Cf", "Cs") else c for c in line)
    return line if len(line) <= limit else line[: limit - 1] + "…"


def run_title(name: str, config: Mapping[str, Any]) -> str:
    """``grpo · addition · tiny · seed 0`` from a configuration, else the run's name.

    Each of ``algorithm``, ``task`` and ``model`` may be a name, or a mapping with one under
    ``name``, ``id`` or ``path``.
    """
    parts = [_choice(config.get(key)) for key in ("algorithm", "task", "model")]
    if not any(parts):
        return clean(name)
    if config.get("seed") is not None:
        parts.append(f"seed {config['seed']}")
    return " · ".join(clean(part, 40) for part in parts if part)


def _choice(value: object) -> str:
    if isinstance(value, Mapping):
        for key in ("name", "id", "path"):
            if value.get(key):
                return _choice(value[key])
        return ""
    return str(value).rstrip("/").rpartition("/")[2] if value else ""


def phase_shares(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Fraction of the wall time of each phase: the named ones and ``other``; empty if unknown.

    The whole is ``time/step_s`` plus ``time/eval_s``. Where phases overlap (asynchronous
    schedules) they can add up to more than the step; then their sum is the whole.
    """
    names = ("rollout", "score", "update", "sync", "eval")
    seconds = {name: _seconds(metrics, name) for name in names}
    whole = _seconds(metrics, "step") + seconds["eval"]
    whole = max(whole, sum(seconds.values()))
    if whole <= 0.0:
        return {}
    shares = {name: value / whole for name, value in seconds.items()}
    shares["other"] = max(0.0, 1.0 - sum(shares.values()))
    return shares


def _seconds(metrics: Mapping[str, Any], phase: str) -> float:
    value = metrics.get(f"time/{phase}_s")
    return float(value) if value is not None and math.isfinite(value) and value > 0 else 0.0
