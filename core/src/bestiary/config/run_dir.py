"""The folder of a run: claimed by exclusive creation, so that no two runs ever share one."""

import fcntl
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bestiary.config.plan import RunPlan
from bestiary.config.resume import CONFIG, check_resume, read_config
from bestiary.config.secrets import hide
from bestiary.errors import CheckpointError, ConfigError

if TYPE_CHECKING:
    from bestiary.plugins.manager import PluginSet

MANIFEST: Final = "manifest.json"
LOCK: Final = ".lock"
PARENT: Final = "runs"
"""Where runs without a ``run_dir`` go, below the working folder."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A folder that belongs to this run.

    Args:
        folder: absolute path.
        attempt: counts resumes, from 1.
        resumed_from: run folder or checkpoint to go on from; None for a fresh start.
        changed: settings that differ from those of the run that is resumed.
    """

    folder: Path
    attempt: int = 1
    resumed_from: Path | None = None
    changed: tuple[str, ...] = ()


def claim(
    plan: RunPlan, *, parent: Path | None = None, now: time.struct_time | None = None
) -> Claim:
    """Take the folder of a run before anything is started.

    Args:
        plan: the run.
        parent: where folders without a name go; default ``runs``.
        now: the time in the folder's name; default is the local time.

    Raises:
        ConfigError: if the folder is there and the run is not to be resumed.
        CheckpointError: if it is to be resumed and there is nothing to resume, or something else.
    """
    if plan.run.resume is not None:
        return _resumed(plan, plan.run.resume)
    if plan.run.run_dir is not None:
        return Claim(_create(Path(plan.run.run_dir).expanduser()))
    folder = Path(PARENT) if parent is None else parent
    return Claim(_create_numbered(folder, default_name(plan, now)))


def check_free(plan: RunPlan) -> None:
    """Refuse a plan whose folder is taken, without creating anything.

    For sweeps, which check all runs before the first starts; :func:`claim` is what decides.

    Raises:
        ConfigError: as :func:`claim`.
    """
    if plan.run.run_dir is not None and plan.run.resume is None:
        folder = Path(plan.run.run_dir).expanduser()
        if folder.exists():
            raise _taken(folder)


def default_name(plan: RunPlan, now: time.struct_time | None = None) -> str:
    """``<date>-<time>-<algorithm>-<task>-s<seed>``."""
    parts = (plan.choices["algorithm"], plan.choices["task"])
    names = "-".join(name.rpartition(":")[2] for name in parts)
    return f"{time.strftime('%Y%m%d-%H%M%S', now or time.localtime())}-{names}-s{plan.run.seed}"


@contextmanager
def hold(folder: Path) -> Iterator[None]:
    """Keep a run's folder while its job lives, so that a live run cannot be resumed.

    The system lets go of it when the process ends, however it ends.

    Raises:
        ConfigError: if another process has it.
    """
    with (folder / LOCK).open("a+", encoding="ascii") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            raise ConfigError(
                f"{folder} belongs to a run that is going on (process {lock.read().strip()})",
                hint="wait for it or stop it, or choose another run_dir",
            ) from None
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield


def write_config(folder: Path, plan: RunPlan, attempt: int = 1) -> None:
    """Write ``config.json``; that of an earlier attempt is kept under its number."""
    data = plan.to_json()
    write_json(folder / CONFIG, data, attempt)
    if hide(data) != data:  # the job has to read the secret; others on the machine have not
        (folder / CONFIG).chmod(0o600)


def read_plan(folder: Path, plugins: "PluginSet") -> RunPlan:
    """The plan of a run folder, as its job process needs it.

    Raises:
        CheckpointError: if the folder has no readable configuration.
    """
    return RunPlan.from_json(read_config(folder), plugins)


def write_json(path: Path, data: Mapping[str, Any], attempt: int = 1) -> None:
    """Write a file atomically; keep that of the attempt before as ``name-<attempt>.json``."""
    if path.exists() and attempt > 1:
        path.replace(path.with_name(f"{path.stem}-{attempt - 1}{path.suffix}"))
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
    temporary.replace(path)


# --------------------------------------------------------------------------- fresh starts


def _create(folder: Path) -> Path:
    _make_parent(folder.parent)
    try:
        folder.mkdir()
    except FileExistsError:
        raise _taken(folder) from None
    except OSError as error:
        raise ConfigError(f"run_dir={folder} cannot be made: {error.strerror}") from error
    return folder.resolve()


def _make_parent(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"the folder {folder} for runs cannot be made: {error.strerror}",
            hint="choose another place: run_dir=PATH",
        ) from error


def _taken(folder: Path) -> ConfigError:
    return ConfigError(
        f"run_dir={folder} is there already, and runs never share a folder",
        hint="choose another run_dir, or go on with that run: resume=auto",
    )


def _create_numbered(parent: Path, name: str) -> Path:
    _make_parent(parent)
    number = 1
    while True:
        folder = parent / (name if number == 1 else f"{name}-{number}")
        try:
            folder.mkdir()
        except FileExistsError:
            number += 1
        except OSError as error:
            raise ConfigError(f"{folder} cannot be made: {error.strerror}") from error
        else:
            return folder.resolve()


# --------------------------------------------------------------------------- going on


def _resumed(plan: RunPlan, resume: str) -> Claim:
    if resume == "auto":
        if plan.run.run_dir is None:
            raise ConfigError(
                "resume=auto needs to know the folder", hint="add run_dir=PATH, or resume=PATH"
            )
        folder = Path(plan.run.run_dir).expanduser()
        if not folder.exists():
            return Claim(_create(folder))  # so that one command both starts and goes on
        if not (folder / CONFIG).exists():
            raise CheckpointError(
                f"run_dir={folder} is there and holds no run (no {CONFIG})",
                hint="remove it, or choose another run_dir",
            )
        source = folder
    else:
        source = Path(resume).expanduser()
        folder = _run_of(source)
        if plan.run.run_dir is not None and Path(plan.run.run_dir).expanduser().resolve() != folder:
            changed = check_resume(read_config(folder), plan, folder)
            target = _create(Path(plan.run.run_dir).expanduser())
            return Claim(target, 1, source.resolve(), tuple(changed))
    changed = check_resume(read_config(folder), plan, folder)
    return Claim(folder.resolve(), _attempts(folder) + 1, source.resolve(), tuple(changed))


def _run_of(path: Path) -> Path:
    for folder in (path, *list(path.parents)[:2]):
        if (folder / CONFIG).is_file():
            return folder.resolve()
    raise CheckpointError(
        f"resume={path}: there is no run and no checkpoint of one",
        hint="give a run folder (with config.json) or one of its checkpoints/step_N",
    )


def _attempts(folder: Path) -> int:
    try:
        return int(json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["attempt"])
    except (OSError, ValueError, KeyError, TypeError):
        return 1  # the run ended before it wrote its manifest
