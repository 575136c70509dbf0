"""The live display of a run.

``Display(mode, total_steps, every=, stream=, title=)`` with ``start(run)``, ``phase(name)``,
``log(step, metrics)``, ``samples(step, rows)``, ``message(text)`` and ``finish(status)``. It is a
context manager; leaving it puts the terminal back. Showing must never hurt the run: calls only
store numbers, one thread draws, and a stream that breaks turns the display off.
"""

import atexit
import os
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Literal, Self, TextIO

from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from bestiary.errors import ConfigError
from bestiary.protocols import RunInfo
from bestiary.tracking.panel import render
from bestiary.tracking.plain import is_due, printable, step_line
from bestiary.tracking.state import DisplayState
from bestiary.tracking.text import run_title

Mode = Literal["auto", "rich", "plain", "none"]
MODES = ("auto", "rich", "plain", "none")

_REFRESH_S = 0.25
_CPU_SHARE = 0.008  # of one core: the pause after a refresh grows with what it cost


class Display:
    """Shows a run on a terminal, or as plain lines elsewhere.

    Args:
        mode: ``rich`` is a panel that is redrawn, ``plain`` one line every few steps, ``none``
            nothing; ``auto`` is rich on a terminal that can show it, else plain.
        total_steps: steps of the run, for the bar and the time left; 0 if unknown.
        every: steps between plain lines; 0 makes about twenty lines of a run.
        max_seconds: seconds after which the run ends by itself; None is no limit.
        stream: where to write; None is the process's standard output.
        title: replaces ``algorithm · task · model · seed`` from the run's configuration.
    """

    def __init__(
        self,
        mode: Mode = "auto",
        total_steps: int = 0,
        *,
        every: int = 0,
        max_seconds: float | None = None,
        stream: TextIO | None = None,
        title: str = "",
    ) -> None:
        if mode not in MODES:
            raise ConfigError(f"display={mode!r}: one of {', '.join(MODES)} is wanted")
        self._stream = stream if stream is not None else sys.stdout
        self.mode: Mode = pick_mode(self._stream, os.environ) if mode == "auto" else mode
        self._every = every if every > 0 else max(1, total_steps // 20)
        self._title = title
        self._state = DisplayState(total_steps, max_seconds)
        self._screen: Screen | None = None

    def start(self, run: RunInfo) -> None:
        """Show the run's title and begin to count its time."""
        title = self._title or run_title(run.name, run.config)
        self._state.start(title, str(run.run_dir))
        if self.mode == "rich":
            self._open()
        else:
            self._write(f"{title}\nrun folder: {run.run_dir}")

    def phase(self, name: str) -> None:
        """Show what is being waited for, with a spinner; the next step ends it."""
        if name == self._state.phase:
            return
        self._state.phase = name
        if self.mode == "rich" and not self._state.status:
            self._open()
        elif name and not self._state.marks:  # later ones would be a line at each evaluation
            self._write(f"{name} …")

    def at(self, step: int) -> None:
        """Say that the run goes on after a step that an earlier attempt has finished."""
        self._state.step = step
        done = step >= self._state.total_steps > 0
        rest = "; all of its steps are done, raise steps= to train more" if done else ""
        self.message(f"goes on after step {step} of {self._state.total_steps or '?'}{rest}")

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Take in one step."""
        self._state.log(step, metrics)
        evaluated = metrics.get("eval/exact_match") is not None
        due = is_due(step, self._state.total_steps, self._every, evaluated)
        if due and self.mode == "plain":
            self._write(step_line(self._state, evaluated))

    def samples(self, step: int, rows: Iterable[Mapping[str, Any]]) -> None:
        """Take in samples; the last one is shown."""
        for row in rows:
            self._state.sample = row

    def message(self, text: str) -> None:
        """Show a line above the panel, as for a warning."""
        if self._screen is not None:
            self._screen.above(text)
        else:
            self._write(text)

    def finish(self, status: Literal["finished", "failed", "stopped"]) -> None:
        """Draw the end and put the terminal back; a second call does nothing."""
        if self._state.status:
            return
        self._state.status, self._state.phase = status, ""
        self._state.ended = self._state.clock()
        if self._screen is not None:
            self._close()
        elif self._state.title:
            self._write(f"{status} after {self._state.step} steps{self._why(status)}")

    def _why(self, status: str) -> str:
        """Why a run ended before its last step without a failure."""
        state = self._state
        if status != "finished" or state.max_seconds is None or state.step >= state.total_steps:
            return ""
        return f" of {state.total_steps}: max_seconds={state.max_seconds:g} have passed"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.finish("finished")
        else:
            stopped = issubclass(kind, KeyboardInterrupt | SystemExit)
            self.finish("stopped" if stopped else "failed")

    def _open(self) -> None:
        if self._screen is None:
            self._screen = Screen(self._state, self._stream)
            atexit.register(self._close)

    def _close(self) -> None:
        screen, self._screen = self._screen, None
        if screen is not None:
            screen.close()
            atexit.unregister(self._close)

    def _write(self, text: str) -> None:
        if self.mode == "none":
            return
        encoding = getattr(self._stream, "encoding", None) or "utf-8"
        try:
            self._stream.write(printable(text, encoding) + "\n")
            self._stream.flush()
        except (OSError, ValueError):  # the reader of the pipe has gone, or the stream is closed
            self.mode = "none"


class Screen:
    """The part of a terminal that is redrawn, by one thread of its own.

    The cursor stays visible: a killed process cannot bring it back.

    Args:
        state: what is drawn; other threads change it.
        stream: a terminal.
    """

    def __init__(self, state: DisplayState, stream: TextIO) -> None:
        self._state = state
        self._spinner = Spinner("dots")
        self._console = Console(file=stream, force_terminal=True, highlight=False)
        self._live = Live(
            console=self._console,
            auto_refresh=False,
            get_renderable=lambda: render(self._state, self._spinner),
        )
        self._live.start()
        self._console.show_cursor(True)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._draw, name="bestiary-display", daemon=True)
        self._thread.start()

    def above(self, text: str) -> None:
        """Print lines that stay, above the panel."""
        try:
            self._console.print(
                Text("\n".join(printable(text, self._console.encoding).split("\n")))
            )
        except (OSError, ValueError):
            self._stop.set()

    def close(self) -> None:
        """Draw once more and leave the last picture standing."""
        self._stop.set()
        if self._thread is not threading.current_thread():
            self._thread.join(timeout=2.0)
        try:
            self._live.stop()
        except (OSError, ValueError):
            return

    def _draw(self) -> None:
        pause = 0.0
        while not self._stop.wait(pause):
            began = time.thread_time()
            try:
                self._live.refresh()
            except (OSError, ValueError):
                return
            pause = next_pause(time.thread_time() - began)


def next_pause(cost_s: float) -> float:
    """Seconds to wait after a refresh that took ``cost_s`` of CPU time."""
    return max(_REFRESH_S, cost_s / _CPU_SHARE)


def pick_mode(stream: TextIO, environ: Mapping[str, str]) -> Mode:
    """``rich`` for a terminal that moves its cursor and writes Unicode, else ``plain``."""
    try:
        terminal = stream.isatty()
    except (AttributeError, ValueError):
        terminal = False
    unicode = (getattr(stream, "encoding", None) or "").lower().replace("-", "").startswith("utf")
    moves = environ.get("TERM", "") not in ("", "dumb") and not environ.get("CI")
    return "rich" if terminal and unicode and moves else "plain"
