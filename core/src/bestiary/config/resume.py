"""Going on with a run: only with what it was made from."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bestiary.errors import CheckpointError

if TYPE_CHECKING:
    from bestiary.config.plan import RunPlan

CONFIG: Final = "config.json"
"""The configuration of a run, in its folder."""

_FIXED_CHOICES: Final = ("model", "algorithm", "task")
_FREE_MODEL_KEYS: Final = ("dtype",)
_FIXED_RUN_KEYS: Final = ("seed",)


def read_config(folder: Path) -> dict[str, Any]:
    """The saved configuration of a run folder.

    Raises:
        CheckpointError: if there is none that can be read.
    """
    path = folder / CONFIG
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    if not isinstance(data, dict):
        raise CheckpointError(f"{path} holds no configuration")
    return data


def check_resume(old: Mapping[str, Any], plan: "RunPlan", folder: Path) -> list[str]:
    """Refuse to go on with a run that something else made.

    Model, algorithm, task and seed must be the same; other settings may change.

    Args:
        old: the configuration of the run that is resumed.
        plan: the new one.
        folder: of the old run, for messages.

    Returns:
        The settings that changed, as ``key: old -> new``.

    Raises:
        CheckpointError: naming the setting and both values.
    """
    before, after = _flat(old), _flat(plan.to_json())
    fixed = [f"choices.{group}" for group in _FIXED_CHOICES]
    fixed += [f"run.{key}" for key in _FIXED_RUN_KEYS]
    fixed += [
        key
        for key in sorted({*before, *after})
        if key.startswith(("options.model.", "options.task."))
        and key.removeprefix("options.model.") not in _FREE_MODEL_KEYS
    ]
    # Values first: two models of one choice differ in model.path, which says more.
    for key in sorted(fixed, key=lambda k: k.startswith("choices.")):
        was, now = before.get(key), after.get(key)
        if was != now and not _follows_from_choice(key, before, after):
            raise CheckpointError(
                f"{folder} was made with {_named(key, was)}; this run has {_named(key, now)}",
                hint=f"set {_named(key, was)} to go on with it, or choose another run_dir",
            )
    skip = ("run.run_dir", "run.resume", "overrides")  # differ whenever a run is resumed
    return [
        f"{_named(key, before.get(key))} -> {json.dumps(after.get(key))}"
        for key in sorted({*before, *after})
        if before.get(key) != after.get(key) and not key.startswith(skip)
    ]


def _follows_from_choice(key: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """Whether an option is only there in one of two choices: the choice is what differs."""
    return (key in before) != (key in after)


def _named(key: str, value: object) -> str:
    name = key.removeprefix("choices.").removeprefix("options.").removeprefix("run.")
    return f"{name}={value if isinstance(value, str) else json.dumps(value)}"


def _flat(data: object, prefix: str = "", depth: int = 3) -> dict[str, Any]:
    """Values by dotted key; what is nested deeper than an option is one value."""
    if not isinstance(data, Mapping) or not data or not depth:
        return {prefix: data}
    found: dict[str, Any] = {}
    for key, value in data.items():
        found.update(_flat(value, f"{prefix}.{key}" if prefix else str(key), depth - 1))
    return found
