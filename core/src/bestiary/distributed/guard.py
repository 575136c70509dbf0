"""Running a job so that nothing of it is left, whatever happens to whom.

Three processes: the launcher (the command that a person started), the job (its child), and a
guard in a session of its own that holds one end of a pipe. When the launcher closes the other
end, or dies, the guard ends every process that carries the job's token, then removes the job's
folder and segments of shared memory, so neither Ctrl-C nor SIGKILL of anything leaves a trace.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType, TracebackType

from bestiary.distributed import reaper
from bestiary.distributed.tokens import JOB_VARIABLE, TEMP_VARIABLE, new_token, temp_dir

FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that the launcher passes on to the job."""


class Guard:
    """The guard process: it cleans up after a token when told to, or when this process dies.

    Args:
        variable: which variable carries the token.
        token: empty makes a new one.
        cleanup_s: seconds that processes have to end when asked, before they are killed.
    """

    def __init__(
        self, variable: str = JOB_VARIABLE, token: str = "", cleanup_s: float = 2.0
    ) -> None:
        self.variable = variable
        self.token = token or new_token()
        self.temp = temp_dir(self.token)
        self.cleanup_s = cleanup_s
        self.temp.mkdir(mode=0o700, parents=True, exist_ok=True)
        argv = [sys.executable, "-P", reaper.__file__, variable, self.token, str(self.temp)]
        argv.append(str(cleanup_s))
        self._process = subprocess.Popen(  # noqa: S603 - this interpreter, our own file
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
        )

    def close(self) -> None:
        """Let the guard clean up, and wait for it; do its work if it is gone itself."""
        if self._process.stdin is not None and not self._process.stdin.closed:
            self._process.stdin.close()
        if self._process.wait() != 0:
            clean(self.token, variable=self.variable, grace_s=self.cleanup_s)


class GuardedProcess:
    """A child process under guard.

    Args:
        argv: command of the child.
        env: its environment; None is this process's own.
        variable: which variable carries the token.
        token: empty makes a new one.
        stdin, stdout: as for :class:`subprocess.Popen`.
        cleanup_s: seconds that processes have to end when asked, before they are killed.
    """

    def __init__(
        self,
        argv: Sequence[str],
        env: Mapping[str, str] | None = None,
        *,
        variable: str = JOB_VARIABLE,
        token: str = "",
        cwd: Path | None = None,
        stdin: int | None = None,
        stdout: int | None = None,
        cleanup_s: float = 2.0,
    ) -> None:
        self._guard = Guard(variable, token, cleanup_s)
        self.token, self.temp = self._guard.token, self._guard.temp
        environment = {
            **(os.environ if env is None else env),
            variable: self.token,
            TEMP_VARIABLE: str(self.temp),
            "SPT_NOENV": "1",
        }
        try:
            # A session of its own: Ctrl-C in a terminal reaches the launcher alone, which passes
            # it on to the job; its workers see nothing of it.
            self.process = subprocess.Popen(  # noqa: S603 - the caller's own command
                list(argv),
                env=environment,
                cwd=cwd,
                stdin=stdin,
                stdout=stdout,
                start_new_session=True,
            )
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let the guard clean up, and wait for the child."""
        self._guard.close()
        if hasattr(self, "process"):
            self.process.wait()

    def __enter__(self) -> "GuardedProcess":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def run_guarded(
    argv: Sequence[str],
    env: Mapping[str, str] | None = None,
    token: str = "",
    *,
    cwd: Path | None = None,
    grace_s: float = 5.0,
) -> int:
    """Run a job to its end and leave nothing behind.

    The first Ctrl-C (or SIGTERM, SIGHUP) is passed on, and the job has ``grace_s`` seconds to end;
    the second one kills it.

    Args:
        argv: command of the job.
        env: its environment; None is this process's own.
        token: empty makes a new one.
        cwd: its working folder.
        grace_s: seconds between a signal and the kill.

    Returns:
        The job's exit status; 128 + n when signal n ended it, or ended the launcher's patience:
        whatever status a job gives itself after a signal was passed on, it was stopped.
    """
    with (
        GuardedProcess(argv, env, token=token, cwd=cwd) as guarded,
        _Forwarding(guarded.process, grace_s) as forwarding,
    ):
        status = guarded.process.wait()
    if status != 0 and forwarding.first:
        return 128 + forwarding.first
    return 128 - status if status < 0 else status


def clean(token: str, *, variable: str = JOB_VARIABLE, grace_s: float = 2.0) -> list[int]:
    """End all processes of a token and remove what they left; returns their ids."""
    return reaper.clean_up(variable, token, temp_dir(token), grace_s)


class _Forwarding:
    """Passes signals on to a process while it is open; only the main thread can."""

    def __init__(self, process: subprocess.Popen[bytes], grace_s: float) -> None:
        self.process = process
        self.grace_s = grace_s
        self.first = 0
        self._before: dict[int, object] = {}
        self._timer: threading.Timer | None = None

    def __enter__(self) -> "_Forwarding":
        if threading.current_thread() is threading.main_thread():
            for number in FORWARDED:
                self._before[number] = signal.signal(number, self._forward)
        return self

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]  # what signal() returned

    def _forward(self, number: int, frame: FrameType | None) -> None:
        if self.first:
            self.process.kill()
            return
        self.first = number
        self.process.send_signal(number)
        self._timer = threading.Timer(self.grace_s, self.process.kill)
        self._timer.daemon = True
        self._timer.start()


def wait_until_gone(token: str, variable: str = JOB_VARIABLE, timeout_s: float = 10.0) -> list[int]:
    """Wait until no process of a token lives; returns those that still do."""
    deadline = time.monotonic() + timeout_s
    while found := reaper.marked(variable, token, temp=temp_dir(token)):
        if time.monotonic() > deadline:
            return [process.pid for process in found]
        time.sleep(0.1)
    return []
