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

from bestiary.errors import EXIT_FAILURE, CheckpointError

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
        CheckpointError: if the disk does not take it, naming path and bytes; earlier checkpoints
            are untouched, after this and any other error.
    """
    root.mkdir(parents=True, exist_ok=True)
    aside, final = root / f".step_{step}.writing", root / f"step_{step}"
    shutil.rmtree(aside, ignore_errors=True)
    try:
        (aside / "models").mkdir(parents=True)
        save_models(aside / "models")
        _write(aside / "state.json", json.dumps(state, indent=1, sort_keys=True))
        _mark(aside)
        _put_in_place(aside, final)
    except BaseException as error:
        written = _size(aside)
        shutil.rmtree(aside, ignore_errors=True)
        reason = _disk_error(error)
        if not reason:
            raise
        raise _cannot_write(final, step, reason, written) from error
    for old in complete_checkpoints(root)[0][: -max(1, keep)]:
        # Later steps than this one are of a branch that was given up; they never push it out.
        if old.step < step:
            shutil.rmtree(old.path, ignore_errors=True)
    return Checkpoint(final, step)


def _mark(folder: Path) -> None:
    """Bring all files to the disk, then write the marker that lists them."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    for path in files:
        _fsync(path)
    sizes = {str(path.relative_to(folder)): path.stat().st_size for path in files}
    _write(folder / MARKER, json.dumps(sizes, indent=1))


def _put_in_place(aside: Path, final: Path) -> None:
    """Rename a complete folder; one of the same name goes only after that."""
    old = final.with_name(f".{final.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if final.exists():
        os.rename(final, old)
    os.rename(aside, final)
    _fsync(final.parent)
    shutil.rmtree(old, ignore_errors=True)


_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)


def _disk_error(error: BaseException) -> str:
    """The reason in words when files could not be written, here or in a worker; else empty."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    first = str(error).partition("\n")[0]
    if isinstance(error, Exception) and any(os.strerror(n) in first for n in _DISK):
        return first  # of a worker, or of a library that has errors of its own
    return ""


def _cannot_write(final: Path, step: int, reason: str, written: int) -> CheckpointError:
    earlier = complete_checkpoints(final.parent)[0]
    size = f" (the last complete one has {_size(earlier[-1].path)})" if earlier else ""
    free = shutil.disk_usage(final.parent).free
    error = CheckpointError(
        f"checkpoint of step {step} could not be written to {final}: {reason}",
        hint=f"{written} bytes were written{size} and {free} are free; earlier checkpoints are "
        "untouched: make room and go on with resume=auto",
    )
    error.exit_code = EXIT_FAILURE  # the run had started
    return error


def set_aside_later(root: Path, step: int, attempt: int) -> list[Path]:
    """Move checkpoints after ``step`` to ``abandoned-<attempt>``: a run goes on from ``step``.

    Left where they are, the newest of them would be taken for the run's last state.

    Returns:
        Where they are now.
    """
    later = [c for c in complete_checkpoints(root)[0] if c.step > step]
    moved = []
    for checkpoint in later:
        folder = root / f"abandoned-{attempt}"
        folder.mkdir(exist_ok=True)
        moved.append(checkpoint.path.rename(folder / checkpoint.path.name))
    return moved


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
    known = {checkpoint.step for checkpoint in complete}
    for path in sorted(root.glob(".step_*.old")):  # cut short between two renames
        number = path.name.removeprefix(".step_").removesuffix(".old")
        if number.isdigit() and int(number) not in known and _is_complete(path):
            complete.append(Checkpoint(path, int(number)))
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
