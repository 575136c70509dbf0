"""Checkpoints of whole runs: written aside, marker last, renamed; the newest complete one counts.

RUN/checkpoints/step_20/models/<name>/…    weights and optimizer, safetensors and JSON
/state.json         algorithm, sampler, source, counters, what made it
/COMPLETE           the files and their sizes
"""

import errno
import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bestiary.errors import CheckpointError

MARKER = "COMPLETE"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A complete checkpoint on disk."""

    path: Path
    step: int

    def state(self) -> dict[str, Any]:
        """The run's state besides the models."""
        loaded: dict[str, Any] = json.loads((self.path / "state.json").read_text())
        return loaded

    def model(self, name: str) -> Path:
        """Folder of one model's training state."""
        return self.path / "models" / name


def write_checkpoint(
    root: Path,
    step: int,
    state: Mapping[str, Any],
    save_models: Callable[[Path], None],
    *,
    keep: int,
) -> Checkpoint:
    """Write a checkpoint, then remove the oldest beyond ``keep``.

    Args:
        root: ``RUN/checkpoints``.
        step: the finished step.
        state: JSON values.
        save_models: writes all models below the folder that it is given.
        keep: complete checkpoints to keep, at least 1.

    Raises:
        CheckpointError: if it cannot be written; earlier checkpoints are untouched.
    """
    root.mkdir(parents=True, exist_ok=True)
    aside, final = root / f".step_{step}.writing", root / f"step_{step}"
    shutil.rmtree(aside, ignore_errors=True)
    try:
        (aside / "models").mkdir(parents=True)
        save_models(aside / "models")
        _write(aside / "state.json", json.dumps(state, indent=1, sort_keys=True))
        sizes = {
            str(path.relative_to(aside)): path.stat().st_size
            for path in sorted(aside.rglob("*"))
            if path.is_file()
        }
        for name in sizes:
            _fsync(aside / name)
        _write(aside / MARKER, json.dumps(sizes, indent=1))
        if final.exists():
            shutil.rmtree(final)
        aside.rename(final)
        _fsync(root)
    except OSError as error:
        needed = _size(aside)
        shutil.rmtree(aside, ignore_errors=True)
        room = shutil.disk_usage(root).free
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise CheckpointError(
            f"checkpoint of step {step} could not be written to {final}: {error.strerror}",
            hint=f"{needed} bytes were written and {room} are free; "
            + ("make room and resume" if full else "earlier checkpoints are untouched"),
        ) from error
    for old in complete_checkpoints(root)[0][: -max(1, keep)]:
        shutil.rmtree(old.path, ignore_errors=True)
    return Checkpoint(final, step)


def complete_checkpoints(root: Path) -> tuple[list[Checkpoint], list[Path]]:
    """(complete checkpoints by step, folders that are not complete).

    A checkpoint is complete when its marker lists files that are all there with their sizes.
    """
    complete: list[Checkpoint] = []
    broken: list[Path] = []
    for path in sorted(root.glob("step_*")) if root.is_dir() else []:
        number = path.name.removeprefix("step_")
        if number.isdigit() and _is_complete(path):
            complete.append(Checkpoint(path, int(number)))
        else:
            broken.append(path)
    return sorted(complete, key=lambda c: c.step), broken


def find_checkpoint(path: Path) -> Checkpoint:
    """The checkpoint at ``path``: a checkpoint folder, or the newest complete one of a run.

    Raises:
        CheckpointError: if there is none that is complete.
    """
    if path.name.startswith("step_"):
        number = path.name.removeprefix("step_")
        if number.isdigit() and _is_complete(path):
            return Checkpoint(path, int(number))
        raise CheckpointError(
            f"{path} is not a complete checkpoint",
            hint=f"a save that was cut short has no {MARKER}; use an earlier step of the run",
        )
    complete, broken = complete_checkpoints(path / "checkpoints")
    if not complete:
        skipped = f"; skipped as incomplete: {[p.name for p in broken]}" if broken else ""
        raise CheckpointError(
            f"no complete checkpoint in {path / 'checkpoints'}{skipped}",
            hint="give a run folder or a checkpoints/step_N folder",
        )
    return complete[-1]


def _is_complete(path: Path) -> bool:
    try:
        sizes = json.loads((path / MARKER).read_text())
        return bool(sizes) and all((path / n).stat().st_size == s for n, s in sizes.items())
    except (OSError, ValueError, AttributeError):
        return False


def _write(path: Path, text: str) -> None:
    with path.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _fsync(path: Path) -> None:
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
