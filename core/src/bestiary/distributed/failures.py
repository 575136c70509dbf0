"""What went wrong on a rank: told by the rank, chosen and worded by the controller."""

import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bestiary.distributed.exits import FIRST_LINE
from bestiary.errors import BestiaryError, WorkerFailure

Kind = Literal["signal", "exit", "lost", "raised", "hung", "collective", "upstream"]

_ROOT_FIRST: tuple[Kind, ...] = (
    "signal",
    "exit",
    "lost",
    "raised",
    "hung",
    "collective",
    "upstream",
)
"""Causes before consequences: a dead rank makes the collectives of the others fail, and a failed
block makes its readers fail, often before the death itself is noticed."""

_COLLECTIVE_SIGNS = ("gloo", "nccl", "closed by peer", "connection reset", "socket timeout")
_KEPT = 20
"""Failed ranks that are listed, and lines of a log that are shown, at most."""
_LAST = 120
"""Characters by which the end of a traceback is found in a log that has it already."""


class RankError(Exception):
    """How an exception crosses from a rank to the controller; it always pickles.

    Args:
        type_name: class of the exception that the rank saw.
        message: its text.
        trace: the whole traceback as text.
        kind: ``raised``, ``collective`` (another rank is to blame) or ``upstream`` (an argument
            could not be fetched because the call that makes it failed).
        original: the exception itself when it is of the project's own vocabulary.
    """

    def __init__(
        self,
        type_name: str,
        message: str,
        trace: str,
        kind: Kind = "raised",
        original: BestiaryError | None = None,
    ) -> None:
        super().__init__(type_name, message, trace, kind, original)
        self.type_name = type_name
        self.message = message
        self.trace = trace
        self.kind: Kind = kind
        self.original = original

    def __str__(self) -> str:
        return f"{self.type_name}: {self.message}"

    @classmethod
    def of(cls, error: BaseException) -> "RankError":
        """Describe an exception that is being handled."""
        trace = "".join(traceback.format_exception(error))
        original = error if isinstance(error, BestiaryError) else None
        message = original.message if original is not None else str(error)
        if original is not None:  # its owner and hint are said once, by the error of the group
            trace = trace.replace(str(original), message)
        return cls(type(error).__name__, message, trace, blame(error), original)


class UpstreamError(Exception):
    """A block that cannot be fetched because the call that makes it failed or its node is gone."""


def blame(error: BaseException) -> Kind:
    """Whether an exception is a cause or the echo of a failure elsewhere."""
    if isinstance(error, UpstreamError):
        return "upstream"
    module, text = type(error).__module__, str(error).lower()
    if type(error).__name__.startswith("Dist") and module.startswith("torch"):
        return "collective"
    if isinstance(error, RuntimeError) and any(sign in text for sign in _COLLECTIVE_SIGNS):
        return "collective"
    return "raised"


@dataclass(frozen=True, slots=True)
class Failure:
    """One failed rank.

    Args:
        what: ``killed by signal 9``, ``ValueError`` …, a phrase that follows "rank 2".
        detail: the message of the exception, or what else is known.
        trace: traceback of the rank.
        log_path: file with everything that the rank printed.
        log_tail: its last lines.
        context: ``at step 3``, when the call was made in a known context.
    """

    group: str
    rank: int
    host: str
    pid: int
    kind: Kind
    what: str
    detail: str = ""
    trace: str = ""
    log_path: Path | None = None
    log_tail: str = ""
    context: str = ""
    hint: str = ""
    original: BestiaryError | None = None

    def line(self) -> str:
        """One line: rank, cause, context, group, host, process."""
        where = f"(group {self.group!r}, host {self.host!r}, pid {self.pid})"
        detail = self.detail.strip().splitlines()
        head = f"rank {self.rank} {self.what}"
        if detail and self.kind in ("raised", "collective", "upstream"):
            head += f": {detail[0][:300]}"
            return " ".join(part for part in (head, self.context, where) if part)
        head = " ".join(part for part in (head, self.context, where) if part)
        return f"{head}: {detail[0][:300]}" if detail else head


def root_cause(failures: Sequence[Failure]) -> Failure:
    """The failure that explains the others; among equals the one that was seen first."""
    return min(failures, key=lambda failure: _ROOT_FIRST.index(failure.kind))


def failure_error(failures: Sequence[Failure]) -> WorkerFailure:
    """The error to raise: its first line is the root cause, then traceback and log lines."""
    first = root_cause(failures)
    parts = [first.line()]
    if first.trace:
        parts.append(first.trace.rstrip())
    said = _without(first.log_tail, first.trace)
    if said:
        parts.append(f"last lines of {first.log_path}:\n{indent(said)}")
    elif first.log_path is not None:
        parts.append(f"its log is {first.log_path}")
    others = [failure for failure in failures if failure is not first][:_KEPT]
    if others:
        parts.append("after it:\n" + "\n".join(f"  {failure.line()}" for failure in others))
    hint = first.hint or (first.original.hint if first.original is not None else "")
    owner = first.original.owner if first.original is not None else None
    error = WorkerFailure("\n".join(parts), hint=hint, owner=owner)
    error.group, error.rank, error.host = first.group, first.rank, first.host
    if first.original is not None:
        error.exit_code = first.original.exit_code
    error.__cause__ = first.original
    return error


def _without(log_tail: str, trace: str) -> str:
    """The last lines of a log before the traceback that is shown already."""
    if not trace or trace.strip()[-_LAST:] not in log_tail:
        return log_tail
    before, found, _ = log_tail.partition(trace.splitlines()[0])
    return before.rstrip() if found else ""


def indent(text: str) -> str:
    """Each line moved two columns to the right."""
    return "\n".join(f"  {line}" for line in text.splitlines())


def tail(path: Path | None, lines: int = _KEPT, size_bytes: int = 16384) -> str:
    """The last lines that the newest process wrote to a log; empty where it cannot be read."""
    if path is None:
        return ""
    try:
        with path.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - size_bytes))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    start = text.rfind(FIRST_LINE)
    return "\n".join(text[max(start, 0) :].splitlines()[-lines:])
