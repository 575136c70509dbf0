"""Somebody dies or is told to stop: one clear line, an honest status, and nothing is left."""

import json
import os
import signal
import time
from pathlib import Path

import pytest
from run_help import SMALL, custom, records, steps_done, wait_for

pytestmark = pytest.mark.slow

SLOW = [
    *SMALL, *custom("letters"), "algorithm=grpo", "loss=lab_slow", "loss.seconds=0.7", "steps=500",
    "eval.every=0", "eval.at_start=false", "run_dir=run", "checkpoint.every=1",
]  # fmt: skip
"""A run that is in an update nearly all of the time."""


@pytest.fixture
def command(make_command, lab_site):
    return make_command(site=lab_site)


def started(command, *words):
    """A run that has finished its first step."""
    process = command.start("train", *SLOW, *words)
    try:
        wait_for(lambda: steps_done(command.folder / "run") >= 1, process, what="step 1")
        command.look()
    except BaseException:
        process.kill()
        raise
    return process


def rank_pid(command, rank):
    """The process of a model rank, from the first line of its log."""
    log = command.folder / "run" / "logs" / f"models-rank{rank}.log"
    return int(log.read_text().splitlines()[0].split("process ")[1])


def result(command):
    return json.loads((command.folder / "run" / "result.json").read_text())


def test_fail_05_a_killed_worker_is_named_nothing_is_left_and_the_run_can_go_on(command):
    process = started(command, "placement.workers=2", "tracker=tensorboard")
    os.kill(rank_pid(command, 1), signal.SIGKILL)
    done = command.end(process, 60)
    assert done.seconds < 30
    assert done.status == 1
    step = steps_done(command.folder / "run") + 1
    first = done.err.splitlines()[0]
    assert first.startswith(f"error: rank 1 killed by signal 9 at step {step} "), done.err
    assert "Traceback" not in done.err
    assert command.leftovers() == []
    assert result(command)["status"] == "failed"
    assert "rank 1 killed by signal 9" in result(command)["error"]

    words = [w for w in SLOW if not w.startswith(("steps=", "loss.seconds="))]
    words += ["placement.workers=2", f"steps={step}", "loss.seconds=0", "resume=auto"]
    assert command("train", *words).status == 0
    last = records(command.folder / "run")[-1]
    assert (last["attempt"], last["step"]) == (2, step)
    assert result(command)["status"] == "finished"


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_fail_02_a_signal_stops_the_run_and_its_trackers(command, number, status):
    process = started(command, "tracker=[wandb,tensorboard]")
    process.send_signal(number)
    done = command.end(process, 60)
    assert done.status == status, done
    assert done.seconds < 20
    assert "stopped" in done.err
    assert "Traceback" not in done.err
    assert result(command)["status"] == "stopped"
    assert command.leftovers() == []
    assert all(json.dumps(r) for r in records(command.folder / "run"))  # no torn line
    assert list((command.folder / "run").rglob("*.wandb"))


def test_fail_02_nothing_is_left_when_the_launcher_is_killed(command):
    process = started(command, "placement.workers=2")
    began = time.monotonic()
    process.kill()
    process.wait()
    assert command.leftovers(patience_s=10) == []
    assert time.monotonic() - began < 11


def test_fail_02_nothing_is_left_when_the_job_is_killed(command):
    process = started(command)
    (token,) = command.tokens
    (job,) = [
        p
        for p in command.processes(token)
        if "bestiary.runtime.job" in p.cmdline() and p.ppid() == process.pid
    ]
    job.kill()
    done = command.end(process, 60)
    assert done.status == 137
    assert command.leftovers() == []
    assert "failed" in done.err


def test_use_01_a_device_that_is_not_there_is_refused_at_once(command):
    words = [w for w in SLOW if w != "run_dir=run"]
    done = command("train", *words, "placement.device=cuda", "run_dir=gpu")
    assert done.seconds < 15
    assert done.status == 2
    first = done.err.splitlines()[0]
    assert "gpu 1 requested" in first, done.err
    assert "0 available" in first
    assert "actor" in first
    assert command.leftovers() == []
    assert not Path(command.folder / "gpu" / "checkpoints").exists()
