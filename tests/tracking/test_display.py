import io
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import threading
import time
from pathlib import Path

import pytest
from rich.console import Console
from rich.spinner import Spinner

from bestiary.errors import ConfigError
from bestiary.protocols import RunInfo
from bestiary.tracking import Display
from bestiary.tracking.display import next_pause, pick_mode
from bestiary.tracking.panel import render
from bestiary.tracking.plain import step_line
from bestiary.tracking.state import HISTORY, DisplayState

RUN = RunInfo(
    run_dir=Path("runs/r1"),
    name="r1",
    config={"algorithm": {"name": "grpo"}, "task": "addition", "model": "tiny", "seed": 3},
    manifest={},
)
METRICS = {
    "reward/mean": 0.5,
    "kl/reference": 0.0123,
    "entropy": 0.7,
    "response_len/mean": 3.2,
    "throughput/tokens_per_s": 4120.0,
    "time/rollout_s": 0.12,
    "time/update_s": 0.15,
    "time/step_s": 0.3,
}


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self):
        return True


def _plain_run(steps, **options):
    stream = io.StringIO()
    display = Display("auto", steps, stream=stream, **options)
    with display:
        display.phase("starting workers")
        display.start(RUN)
        for step in range(1, steps + 1):
            evaluated = {"eval/exact_match": 0.25, "eval/greedy": 0.5} if step == 7 else {}
            display.log(step, METRICS | evaluated)
            display.phase("saving")
    return stream.getvalue()


def test_a_pipe_gets_plain_lines_without_control_characters():
    text = _plain_run(200, every=50)
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", text)
    lines = text.splitlines()
    assert lines[:3] == [
        "starting workers …",
        "grpo · addition · tiny · seed 3",
        "run folder: runs/r1",
    ]
    steps = [int(m[1]) for line in lines if (m := re.match(r"step +(\d+)/200  reward 0.5", line))]
    assert steps == [1, 7, 50, 100, 150, 200]
    (evaluated,) = [line for line in lines if line.startswith("step   7")]
    assert "held-out 0.250  greedy 0.500  kl 0.012  len 3.200" in evaluated
    assert lines[-1] == "finished after 200 steps"
    assert "saving" not in text  # phases are named until the first step only


def test_about_twenty_lines_by_default():
    assert 20 <= _plain_run(1000).count("\nstep ") <= 23


def test_nothing_is_shown_in_mode_none():
    stream = io.StringIO()
    with Display("none", 5, stream=stream) as display:
        display.start(RUN)
        display.phase("x")
        display.log(1, METRICS)
        display.message("m")
    assert stream.getvalue() == ""


def test_a_wrong_mode_is_an_error():
    with pytest.raises(ConfigError, match=r"display='rihc'.*auto, rich, plain, none"):
        Display("rihc")


@pytest.mark.parametrize(
    ("terminal", "environ", "expected"),
    [
        (True, {"TERM": "xterm"}, "rich"),
        (True, {"TERM": "dumb"}, "plain"),
        (True, {}, "plain"),
        (True, {"TERM": "xterm", "CI": "true"}, "plain"),
        (False, {"TERM": "xterm"}, "plain"),
    ],
)
def test_auto(terminal, environ, expected):
    assert pick_mode(Terminal() if terminal else io.StringIO(), environ) == expected


def test_a_terminal_without_unicode_is_plain():
    stream = Terminal()
    stream.encoding = "ascii"
    assert pick_mode(stream, {"TERM": "xterm"}) == "plain"


def test_plain_text_fits_the_encoding_of_the_stream():
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    display = Display("plain", 1, stream=stream)
    display.message("Δ\x1b[2J first\nsecond")
    stream.flush()
    assert raw.getvalue() == b"??[2J first\nsecond\n"


def test_a_reader_that_goes_away_does_not_end_the_run():
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as stream:
        display = Display("plain", 2, stream=stream)
        display.start(RUN)
        display.log(1, METRICS)
        display.finish("finished")
        assert display.mode == "none"
        with pytest.raises(BrokenPipeError):
            stream.flush()
        os.dup2(os.open(os.devnull, os.O_WRONLY), writing)


def _panel(state, width=100):
    console = Console(file=io.StringIO(), width=width, force_terminal=False, color_system=None)
    console.print(render(state, Spinner("dots")))
    return console.file.getvalue()


def _state(steps=5, total=10, step_s=2.0):
    now = [100.0]
    state = DisplayState(total, clock=lambda: now[0])
    state.start("grpo · addition · tiny · seed 3", "runs/r1")
    for step in range(1, steps + 1):
        now[0] += step_s
        state.log(step, METRICS | {"eval/exact_match": 0.1 * step, "eval/greedy": 0.75})
    return state, now


def test_the_panel_shows_all_that_the_demo_needs():
    state, _ = _state()
    state.sample = {"prompt": "23+45=\n", "response": "[red]68", "reward": 1.0, "answer": "68"}
    text = _panel(state)
    for part in (
        "grpo · addition · tiny · seed 3", "runs/r1", "step 5/10", "0:10 elapsed", "0:10 left",
        "reward", "0.500", "held-out, sampled", "▁▃▅▆█", "held-out, greedy", "0.750",
        "KL to reference", "0.012", "nats/token", "response length", "3.200", "entropy", "0.700",
        "tokens/s", "4,120", "rollout 40%", "update 50%", "other 10%", "23+45=", "[red]68",
        "(expected 68)",
    ):  # fmt: skip
        assert part in text, part
    assert max(len(line) for line in text.splitlines()) <= 100
    assert len(text.splitlines()) <= 20


@pytest.mark.parametrize("width", [20, 60, 200])
def test_the_panel_fits_any_width(width):
    state, _ = _state()
    assert max(len(line) for line in _panel(state, width).splitlines()) <= width


def test_before_the_start_there_is_a_spinner_with_the_phase():
    state = DisplayState(10)
    state.phase = "loading model"
    assert "loading model" in _panel(state)


def test_the_time_left_shrinks_while_a_step_runs_and_ends_at_zero():
    state, now = _state(steps=5, total=10, step_s=2.0)
    assert state.left_s == pytest.approx(10.0)
    now[0] += 1.5
    assert state.left_s == pytest.approx(8.5)
    now[0] += 100.0
    assert state.left_s == 0.0
    assert DisplayState(10).left_s is None
    assert _state(steps=1)[0].left_s is None
    assert _state(total=0)[0].left_s is None


def test_the_time_left_knows_the_limit_in_seconds():
    state, now = _state(steps=5, total=100, step_s=2.0)
    state.max_seconds = 14.0  # counted from the first step, which was at 2 s
    assert state.left_s == pytest.approx(6.0)
    now[0] += 60.0
    assert state.left_s == 0.0


def test_a_run_that_its_limit_ended_says_so():
    out = io.StringIO()
    display = Display("plain", 100, max_seconds=3.0, stream=out)
    display.start(RUN)
    display.log(1, METRICS)
    display.finish("finished")
    assert out.getvalue().endswith("finished after 1 steps of 100: max_seconds=3 have passed\n")


def test_a_run_that_goes_on_says_where_and_whether_anything_is_left():
    out = io.StringIO()
    display = Display("plain", 10, stream=out)
    display.start(RUN)
    display.at(4)
    display.at(10)
    text = out.getvalue()
    assert "goes on after step 4 of 10\n" in text
    assert "goes on after step 10 of 10; all of its steps are done, raise steps=" in text


@pytest.mark.parametrize(("reward", "shown"), [(0.25, True), (0.5, False)])
def test_a_graded_reward_is_shown_beside_the_share_of_right_answers(reward, shown):
    state, _ = _state()
    state.log(6, {"eval/exact_match": 0.5, "eval/reward": reward})
    assert ("held-out reward" in _panel(state)) is shown
    assert ("held-out reward" in step_line(state, evaluated=True)) is shown


def test_metrics_that_are_not_numbers_leave_the_last_value():
    state, _ = _state()
    state.log(6, {"reward/mean": None, "kl/reference": float("nan")})
    assert state.latest["reward/mean"] == 0.5
    assert state.latest["kl/reference"] == 0.0123


def test_history_does_not_grow_without_bound():
    state = DisplayState()
    for step in range(5000):
        state.log(step, {"reward/mean": float(step)})
    values = state.history["reward/mean"]
    assert len(values) <= HISTORY
    assert (values[0], values[-1]) == (0.0, 4999.0)
    assert values == sorted(values)


def test_the_pause_grows_with_the_cost_so_that_drawing_stays_below_one_percent():
    assert next_pause(0.0) == 0.25  # four times a second at most
    assert 0.004 / next_pause(0.004) < 0.01
    assert 0.1 / next_pause(0.1) < 0.01


def test_taking_in_a_step_costs_far_less_than_a_percent_of_it():
    display = Display("plain", 10_000, every=10_000, stream=io.StringIO())
    display.start(RUN)
    began = time.thread_time()
    for step in range(1, 2001):
        display.log(step, METRICS)
    assert (time.thread_time() - began) / 2000 < 0.003 / 3  # a step of 0.3 s


def test_a_rich_display_draws_messages_above_and_ends_its_thread():
    stream = Terminal()
    threads = threading.active_count()
    display = Display("rich", 2, stream=stream)
    with display:
        display.phase("starting workers")
        time.sleep(0.1)
        display.start(RUN)
        display.message("tracker 'x' failed\x1b[2J")
        display.log(1, METRICS)
        display.samples(1, iter([{"prompt": "p1"}, {"prompt": "p2", "reward": 0.0}]))
    text = stream.getvalue()
    assert "starting workers" in text
    assert "tracker 'x' failed�[2J" in text
    assert "p2" in text
    assert "finished" in text
    assert threading.active_count() == threads
    display.finish("failed")
    assert stream.getvalue() == text


@pytest.mark.parametrize(
    ("error", "status"),
    [(KeyboardInterrupt, "stopped"), (SystemExit, "stopped"), (ValueError, "failed")],
)
def test_leaving_by_an_error_shows_what_happened(error, status):
    rich, plain = Terminal(), io.StringIO()
    with pytest.raises(error):
        _start_and_raise(Display("rich", 2, stream=rich), error)
    with pytest.raises(error):
        _start_and_raise(Display("plain", 2, stream=plain), error)
    assert status in rich.getvalue()
    assert plain.getvalue().splitlines()[-1] == f"{status} after 0 steps"


def _start_and_raise(display, error):
    with display:
        display.start(RUN)
        raise error


CHILD = """
import sys, time
from pathlib import Path
from bestiary.protocols import RunInfo
from bestiary.tracking.display import Display
display = Display("auto", 1000)
assert display.mode == "rich", display.mode
display.start(RunInfo(Path("runs/r"), "r", {"algorithm": "grpo"}, {}))
for step in range(1, 1000):
    display.log(step, {"reward/mean": 0.5})
    time.sleep(0.01)
"""


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_leaves_the_cursor_visible_and_the_terminal_as_it_was(sent):
    master, slave = pty.openpty()
    environ = {k: v for k, v in os.environ.items() if k != "CI"} | {"TERM": "xterm-256color"}
    before = termios.tcgetattr(slave)
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD],
        stdout=slave,
        stderr=subprocess.DEVNULL,
        env=environ,
        # A shell without job control starts background commands with SIGINT ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    output, deadline = b"", time.monotonic() + 60
    while b"reward" not in output and time.monotonic() < deadline:
        if select.select([master], [], [], 0.5)[0]:
            output += os.read(master, 65536)
    child.send_signal(sent)
    child.wait(timeout=30)
    while select.select([master], [], [], 0.2)[0]:
        output += os.read(master, 65536)
    after = termios.tcgetattr(slave)
    os.close(master)
    os.close(slave)
    assert b"reward" in output
    assert output.rindex(b"\x1b[?25h") > output.rfind(b"\x1b[?25l")
    assert b"\x1b[?1049h" not in output  # never the alternate screen
    assert before == after
