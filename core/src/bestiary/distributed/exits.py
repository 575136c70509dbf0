"""How a worker process ended: written by the process itself, read by the controller.

Ray only says that a process is gone. So each rank leaves a record of every end that it can see:
fatal signals (by faulthandler, in its log), signals that ask it to end (a file for each, written
in the C handler, so also while the process is stuck in C code), and exits with a status. A
process that is gone without any record was killed by the one signal that nobody can see: 9.
"""

import atexit
import faulthandler
import os
import signal
import sys
from pathlib import Path
from typing import NoReturn, TextIO

ASKED = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGXCPU)
"""Signals that end a process and leave a record in a file of their own."""

STACKS = signal.SIGUSR1
"""Makes a rank write the stacks of all its threads to its log."""

FIRST_LINE = "=== bestiary worker"
"""How the output of a process begins in its log."""

_FATAL = {
    "Segmentation fault": signal.SIGSEGV,
    "Aborted": signal.SIGABRT,
    "Bus error": signal.SIGBUS,
    "Floating point exception": signal.SIGFPE,
    "Floating-point exception": signal.SIGFPE,
    "Illegal instruction": signal.SIGILL,
}
_kept: list[TextIO] = []


def redirect_output(log_path: Path) -> TextIO:
    """Send everything that this process and its libraries print to a file; returns it.

    The file is kept and appended to, so it starts with a line that tells attempts apart.
    """
    log_path.parent.mkdir(parents=True, exist_ok=True)
    log = log_path.open("a", buffering=1)
    log.write(f"{FIRST_LINE} {log_path.stem}, process {os.getpid()}\n")
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(log.fileno(), 1)
    os.dup2(log.fileno(), 2)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(line_buffering=True)
    return log


def record_exits(log: TextIO, prefix: Path) -> None:
    """From now on, leave a record at ``prefix`` of how this process ends."""
    prefix.parent.mkdir(parents=True, exist_ok=True)
    faulthandler.enable(file=log, all_threads=True)
    faulthandler.register(STACKS, file=log, all_threads=True)
    _kept.append(log)
    for asked in ASKED:
        record = Path(f"{prefix}.{int(asked)}").open("w")  # noqa: SIM115 - open until the end
        _kept.append(record)
        faulthandler.register(asked, file=record, all_threads=False, chain=True)
    leave = os._exit

    def recorded_exit(status: int) -> NoReturn:
        Path(f"{prefix}.status").write_text(str(status))
        leave(status)

    os._exit = recorded_exit
    atexit.register(lambda: Path(f"{prefix}.status").write_text("0"))


def read_exit(prefix: Path, log_tail: str) -> tuple[int, int | None]:
    """(signal, status) that a dead process left; signal 9 where it left nothing.

    Args:
        prefix: as given to :func:`record_exits`.
        log_tail: last lines of the rank's log.

    Returns:
        ``(n, None)`` for a process that signal n ended, ``(0, status)`` for one that left.
    """
    for line in reversed(log_tail.splitlines()):
        if line.startswith("Fatal Python error: "):
            number = _FATAL.get(line.removeprefix("Fatal Python error: ").strip())
            if number is not None:
                return int(number), None
    for asked in ASKED:
        record = Path(f"{prefix}.{int(asked)}")
        if record.exists() and record.stat().st_size:
            return int(asked), None
    status = Path(f"{prefix}.status")
    if status.exists():
        return 0, int(status.read_text() or 0)
    return int(signal.SIGKILL), None


def forget_exit(prefix: Path) -> None:
    """Remove the records of a process that ended as it should."""
    for name in (*(str(int(asked)) for asked in ASKED), "status"):
        Path(f"{prefix}.{name}").unlink(missing_ok=True)
