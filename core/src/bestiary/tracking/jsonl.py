"""The record that is always on: ``RUN/metrics.jsonl`` and ``RUN/samples/step_N.jsonl``.

One JSON object a step, only ever appended; each carries ``attempt``, so the file keeps what a
resumed run redid beside what it replaced. Reading gives each step once. A line torn by kill -9
is ignored on reading and cut off before the next append.
"""

import errno
import json
import math
import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, SupportsFloat

from bestiary.errors import BestiaryError, DataError
from bestiary.protocols import RunInfo

METRICS_FILE = "metrics.jsonl"
SAMPLES_FOLDER = "samples"

_FSYNC_EVERY_S = 5.0  # a flushed line survives the process; fsync guards against the machine only
_NO_FSYNC = (errno.EINVAL, errno.ENOTSUP)  # some network file systems have none


class JsonlTracker:
    """Writes the record of a run; a failure to write is an error that names the path."""

    def __init__(self) -> None:
        self._file: AppendFile | None = None
        self._folder = Path()
        self._attempt = 1

    def start(self, run: RunInfo) -> None:
        """Open ``run.run_dir``'s record for appending."""
        self._attempt = run.attempt
        self._folder = run.run_dir / SAMPLES_FOLDER
        self._file = AppendFile(run.run_dir / METRICS_FILE)

    def log(self, step: int, metrics: Mapping[str, SupportsFloat]) -> None:
        """Append one step."""
        if self._file is None:
            raise BestiaryError(f"the record got step {step} before start", hint="call start(run)")
        self._file.append(encode_record(step, self._attempt, metrics))

    def samples(self, step: int, rows: Iterable[Mapping[str, Any]]) -> None:
        """Append rows to the step's file of samples; no rows make no file."""
        lines = [
            json.dumps(
                {"step": step, "attempt": self._attempt} | _finite(dict(row)),
                allow_nan=False,
                default=_plain,
                ensure_ascii=False,
            )
            for row in rows
        ]
        if lines:
            file = AppendFile(self._folder / f"step_{step}.jsonl")
            try:
                file.append("\n".join(lines))
            finally:
                file.close()

    def sync(self) -> None:
        """Bring everything so far to the disk."""
        if self._file is not None:
            self._file.sync()

    def finish(self, status: Literal["finished", "failed", "stopped"]) -> None:
        """Bring the record to the disk and close it."""
        file, self._file = self._file, None
        if file is not None:
            try:
                file.sync()
            finally:
                file.close()


class AppendFile:
    """A file of whole lines that is only appended to.

    Args:
        path: created with its folder if missing; a torn last line is cut off.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            _repair(path)
            self._file = path.open("ab", buffering=0)
        except OSError as error:
            raise _cannot("open", path, error) from error
        self._synced = time.monotonic()

    def append(self, text: str) -> None:
        """Append ``text`` and a line end in one write, where the system takes it in one."""
        data = memoryview(f"{text}\n".encode())
        try:
            while data:
                data = data[self._file.write(data) or 0 :]
            if time.monotonic() - self._synced > _FSYNC_EVERY_S:
                self.sync()
        except OSError as error:
            raise _cannot("write to", self.path, error) from error

    def sync(self) -> None:
        """Bring what was written to the disk."""
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            if error.errno not in _NO_FSYNC:
                raise _cannot("write to", self.path, error) from error
        self._synced = time.monotonic()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def encode_record(step: int, attempt: int, metrics: Mapping[str, SupportsFloat]) -> str:
    """One line of the record: ``step`` first, then sorted keys; NaN and ±inf become null.

    Args:
        step: counted from 0, the state before training.
        attempt: counted from 1.
        metrics: numbers by name; whole numbers stay whole.

    Raises:
        DataError: for a value that is no number.
    """
    values: dict[str, Any] = {"attempt": attempt}
    nonfinite = []
    for name, value in metrics.items():
        if name in ("step", "attempt"):
            continue
        number = _number(name, value)
        if math.isfinite(number):
            values[name] = number
        else:
            values[name] = None
            nonfinite.append(name)
    if nonfinite:
        values["nonfinite"] = sorted(nonfinite)
    return json.dumps({"step": int(step), **dict(sorted(values.items()))}, allow_nan=False)


def read_records(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Every complete line of a record in file order, all attempts.

    Raises:
        DataError: if the file is missing, or a line that is not the last cannot be read.
    """
    path = Path(path)
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        reason = error.strerror or str(error)
        raise DataError(
            f"cannot read the record {path}: {reason}", hint="give a run folder's metrics.jsonl"
        ) from error
    last = max((i for i, line in enumerate(lines) if line.strip()), default=-1)
    records = []
    for index, line in enumerate(lines[: last + 1]):
        record = _parse(line)
        if record is not None:
            records.append(record)
        elif line.strip() and index != last:
            raise DataError(
                f"{path} line {index + 1} is not a JSON object: {line[:60]!r}",
                hint="only the last line of a record may be torn; restore the file",
            )
    return records


def read_metrics(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Each step of a run once, in order, from the last attempt that covers it.

    An attempt that begins at step s abandons what earlier attempts did from s on, also beyond the
    steps that it has reached itself: those numbers belong to weights that no longer exist.

    Returns:
        Records with ``step`` and ``attempt``; null where a value was not finite.
    """
    kept: dict[int, dict[str, Any]] = {}
    attempt = 0
    for record in read_records(path):
        if record["attempt"] > attempt:
            attempt = record["attempt"]
            kept = {step: old for step, old in kept.items() if step < record["step"]}
        if record["attempt"] == attempt:
            kept[record["step"]] = record
    return [kept[step] for step in sorted(kept)]


def read_samples(run_dir: str | os.PathLike[str], step: int) -> list[dict[str, Any]]:
    """The sample rows of a step from the last attempt that wrote any."""
    rows = read_records(Path(run_dir) / SAMPLES_FOLDER / f"step_{step}.jsonl")
    last = max((row["attempt"] for row in rows), default=0)
    return [row for row in rows if row["attempt"] == last]


def _repair(path: Path) -> None:
    """Make the file end with a line end: complete the last line, or cut it off where torn."""
    if not path.exists():
        return
    with path.open("r+b") as file:
        end = file.seek(0, os.SEEK_END)
        start, tail = end, b""
        while start > 0 and b"\n" not in tail:
            step = min(start, 65536)
            start = file.seek(start - step)
            tail = file.read(step) + tail
        torn = tail.rpartition(b"\n")[2]
        if not torn:
            return
        if _parse(torn) is not None:
            file.seek(end)
            file.write(b"\n")
        else:
            file.truncate(end - len(torn))


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) and "step" in value and "attempt" in value else None


def _number(name: str, value: SupportsFloat) -> float | int:
    if isinstance(value, int):
        return int(value)
    try:
        number = float(value)
    except (TypeError, ValueError) as error:
        raise DataError(
            f"metric {name!r} is {value!r} of type {type(value).__name__}; a number is wanted",
            hint="log numbers under metric names; texts belong into samples",
        ) from error
    whole = hasattr(value, "__index__") and number.is_integer()
    return int(number) if whole else number


def _finite(value: Any) -> Any:  # noqa: ANN401 - any JSON value
    """The value with NaN and ±inf replaced by None at any depth."""
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def _plain(value: object) -> Any:  # noqa: ANN401 - any JSON value
    """JSON value of a number of another library, else its text."""
    if isinstance(value, SupportsFloat):
        return _finite(float(value))
    return str(value)


def _cannot(verb: str, path: Path, error: OSError) -> BestiaryError:
    return BestiaryError(
        f"cannot {verb} the record {path}: {error.strerror or error}",
        hint="the record must be written: make space or choose another run_dir, then resume",
    )
