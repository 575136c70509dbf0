"""Ending processes by the token in their environment, and removing what they left.

Also the program of the guard process. The standard library and psutil only, and no other module
of the project: it must work when everything else is broken.

    python reaper.py VARIABLE TOKEN TEMP_DIR GRACE_S

It acts when its standard input ends or its parent dies.
"""

import contextlib
import os
import select
import shutil
import signal
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import psutil

_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - the place of shared memory, not a temporary file
_POLL_S = 0.05
_KILL_S = 5.0
_WATCH_S = 1.0
_START_S = 0.2
_YOUNG_S = 10.0


def marked(variable: str, token: str, *, temp: Path | None = None) -> list[psutil.Process]:
    """Live processes that belong to a token, except this one and its ancestors.

    A process belongs if its environment says so, if its output goes into the job's folder (some
    overwrite the memory that shows their environment), or if its parent belongs.
    """
    mine = {os.getpid(), *(p.pid for p in psutil.Process().parents())}
    found: dict[int, psutil.Process] = {}
    children: dict[int, list[psutil.Process]] = {}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.status() == psutil.STATUS_ZOMBIE:
                continue
            children.setdefault(process.ppid(), []).append(process)
            if process.pid not in mine and _belongs(process, variable, token, temp):
                found[process.pid] = process
    queue = list(found)
    while queue:
        for child in children.get(queue.pop(), ()):
            if child.pid not in found and child.pid not in mine:
                found[child.pid] = child
                queue.append(child.pid)
    return list(found.values())


def _belongs(process: psutil.Process, variable: str, token: str, temp: Path | None) -> bool:
    with contextlib.suppress(psutil.Error):
        if _environment(process).get(variable) == token:
            return True
    if temp is None:
        return False
    for number in (1, 2):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/{process.pid}/fd/{number}").startswith(f"{temp}/"):
                return True
    return False


def _environment(process: psutil.Process) -> dict[str, str]:
    """What a process was started with; one that has just begun a program is waited for.

    The kernel shows an empty environment for a moment after ``exec``, and to the parent the child
    has started by then.
    """
    found = process.environ()
    deadline = time.monotonic() + _START_S
    while not found and time.time() - process.create_time() < _YOUNG_S:
        if time.monotonic() > deadline:
            break
        time.sleep(0.005)
        found = process.environ()
    return found


def end_marked(
    variable: str, token: str, *, grace_s: float = 2.0, temp: Path | None = None
) -> list[int]:
    """Ask every process of a token to end, then make it; returns their ids.

    New ones that appear meanwhile are found as well: it ends when a look finds none.
    """
    ended: set[int] = set()
    began = time.monotonic()
    while found := marked(variable, token, temp=temp):
        hard = time.monotonic() - began >= grace_s
        for process in found:
            if hard or process.pid not in ended:
                with contextlib.suppress(psutil.Error):
                    process.send_signal(signal.SIGKILL if hard else signal.SIGTERM)
            ended.add(process.pid)
        if time.monotonic() - began > grace_s + _KILL_S:
            break  # in uninterruptible sleep: nothing ends it
        psutil.wait_procs(found, timeout=_POLL_S)
    return sorted(ended)


def segments_of(processes: Iterable[psutil.Process]) -> set[Path]:
    """Named segments in shared memory that processes have mapped or open."""
    found: set[Path] = set()
    for process in processes:
        with contextlib.suppress(OSError), open(f"/proc/{process.pid}/maps") as maps:
            for line in maps:
                place = line.find(f"{_SHARED_MEMORY}/")
                if place >= 0:
                    found.add(Path(line[place:].rstrip("\n")))
        with contextlib.suppress(OSError):
            for entry in os.scandir(f"/proc/{process.pid}/fd"):
                with contextlib.suppress(OSError):
                    target = os.readlink(entry.path)
                    if target.startswith(f"{_SHARED_MEMORY}/"):
                        found.add(Path(target))
    return found


def remove_segments(token: str, held: set[Path]) -> list[Path]:
    """Remove a job's segments: those named after it, and those that only it had mapped."""
    removed = []
    named = set(_SHARED_MEMORY.glob(f"bst-{token}*")) if _SHARED_MEMORY.is_dir() else set()
    others = {path for path in held if path.exists()}
    if others:
        others -= segments_of(psutil.process_iter())
    for path in sorted(named | others):
        with contextlib.suppress(OSError):
            path.unlink()
            removed.append(path)
    return removed


def clean_up(variable: str, token: str, temp: Path | None, grace_s: float = 2.0) -> list[int]:
    """End all processes of a token, then remove its segments and its folder.

    Returns:
        Ids of the processes that were still there.
    """
    held = segments_of(marked(variable, token, temp=temp))
    ended = end_marked(variable, token, grace_s=grace_s, temp=temp)
    remove_segments(token, held)
    if temp is not None and temp.exists():
        shutil.rmtree(temp, ignore_errors=True)
    return ended


def main(variable: str, token: str, temp: str, grace_s: str) -> None:
    """Wait until standard input ends or the launcher is gone, then clean up."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    launcher = os.getppid()
    # A fork of the launcher may hold the pipe open after it, so its death is looked for as well.
    while os.getppid() == launcher:
        if select.select([0], [], [], _WATCH_S)[0] and not os.read(0, 4096):
            break
    clean_up(variable, token, Path(temp) if temp else None, float(grace_s))


if __name__ == "__main__":
    main(*sys.argv[1:5])
