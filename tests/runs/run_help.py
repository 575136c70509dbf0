"""Whole runs for tests: small, in this process or as the command line starts them."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from bestiary.distributed import reaper
from bestiary.distributed.tokens import JOB_VARIABLE

FOLDER = Path(__file__).parent
REWARDS = FOLDER / "rewards.py"

SMALL = (
    "task=addition", "model=tiny",
    "model.hidden=32", "model.layers=2", "model.heads=2", "model.warm_start=null",
    "algorithm.prompts=4", "algorithm.samples=4", "train_engine.lr=1e-2",
    "eval.problems=8", "eval.samples=2", "display=none",
)  # fmt: skip
"""A run of about a second."""


def custom(name, **kwargs):
    """Words that choose a reward function of rewards.py."""
    words = ["reward=custom", f"reward.path={REWARDS}:{name}"]
    if kwargs:
        pairs = ",".join(f"{key}:{value}" for key, value in kwargs.items())
        words.append(f"reward.kwargs={{{pairs}}}")
    return words


def install(folder: Path) -> Path:
    """Metadata of the test plugin, as an installer would write it."""
    info = folder / "run_lab-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: run-lab\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[bestiary]\nrun_lab = run_lab\n")
    return folder


def train_here(words, run_dir, plugins, small=SMALL):
    """What ``bestiary train`` does, without a process of its own; returns the last metrics."""
    from bestiary.config.compose import compose_run
    from bestiary.config.manifest import manifest, write_manifest
    from bestiary.config.run_dir import claim, write_config
    from bestiary.runtime.job import train

    plan = compose_run([*small, "placement=inprocess", f"run_dir={run_dir}", *words], None, plugins)
    taken = claim(plan)
    write_config(taken.folder, plan, taken.attempt)
    write_manifest(taken.folder, manifest(plan, plugins, taken, ["test"]), taken.attempt)
    return train(plan, plugins, taken.folder)


def records(run_dir):
    """Every line of a run's record."""
    return [json.loads(line) for line in (Path(run_dir) / "metrics.jsonl").read_text().splitlines()]


def without_times(record):
    """A record without what differs between two equal runs: times, speeds and the attempt."""
    dropped = ("time/", "throughput/", "update/forward_s", "update/backward_s")
    dropped += ("update/optimizer_s", "update/reduce_s", "attempt")
    return {name: value for name, value in record.items() if not name.startswith(dropped)}


# --------------------------------------------------------------------------- the command line


@dataclass
class Done:
    """A command that has ended."""

    status: int
    out: str
    err: str
    seconds: float


class Command:
    """``bestiary`` in a process of its own, watched for what it leaves behind.

    Args:
        folder: where it runs.
        site: a folder with further plugins.
        variables: of its environment.
    """

    def __init__(self, folder: Path, site: Path | None = None, **variables: str) -> None:
        self.folder = folder
        paths = [str(p) for p in (site, FOLDER if site else None) if p]
        paths += [p for p in (os.environ.get("PYTHONPATH"),) if p]
        # Short, so that job folders go here and not to the machine's own.
        self.temp = Path(tempfile.mkdtemp(prefix="bt", dir="/tmp"))
        self.env = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(paths),
            "TMPDIR": str(self.temp),
            "COLUMNS": "200",
            "OMP_NUM_THREADS": "1",
            **variables,
        }
        self.tokens: set[str] = set()
        self.segments: set[Path] = set()

    def start(self, *words: object) -> subprocess.Popen:
        argv = [sys.executable, "-m", "bestiary.cli.main", *map(str, words)]
        out, err = (self.folder / name for name in ("stdout", "stderr"))
        with out.open("w") as o, err.open("w") as e:
            return subprocess.Popen(
                argv, cwd=self.folder, env=self.env, stdout=o, stderr=e, start_new_session=True
            )

    def look(self) -> None:
        """Remember the jobs of the command, and their shared memory."""
        self.tokens |= {path.name.removeprefix("bst-") for path in self.temp.glob("bst-*")}
        for token in self.tokens:
            self.segments |= reaper.segments_of(self.processes(token))

    def end(self, process: subprocess.Popen, timeout_s: float = 120.0) -> Done:
        """Wait for the end; a command that does not end is killed and fails the test."""
        began = time.monotonic()
        try:
            while process.poll() is None:
                assert time.monotonic() - began < timeout_s, self.err
                self.look()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(1.0)
        finally:
            process.kill()
        process.wait()
        return Done(process.returncode, self.out, self.err, time.monotonic() - began)

    def __call__(self, *words: object, timeout_s: float = 120.0) -> Done:
        return self.end(self.start(*words), timeout_s)

    @property
    def out(self) -> str:
        return (self.folder / "stdout").read_text()

    @property
    def err(self) -> str:
        return (self.folder / "stderr").read_text()

    def processes(self, token: str) -> list[psutil.Process]:
        """Live processes of a job."""
        return reaper.marked(JOB_VARIABLE, token, temp=self.temp / f"bst-{token}")

    def leftovers(self, patience_s: float = 0.0) -> list[str]:
        """Processes, job folders and segments of the command's jobs that are still there."""
        assert self.tokens, "no job was seen"
        deadline = time.monotonic() + patience_s
        while True:
            left = [f"process {p}" for token in self.tokens for p in self.processes(token)]
            left += [str(path) for path in self.temp.glob("bst-*")]
            left += [str(path) for path in self.segments if path.exists()]
            left += [str(p) for t in self.tokens for p in Path("/dev/shm").glob(f"bst-{t}*")]
            if not left or time.monotonic() > deadline:
                return left
            time.sleep(0.2)

    def close(self) -> None:
        """End what a failed test has left."""
        for token in self.tokens:
            reaper.clean_up(JOB_VARIABLE, token, self.temp / f"bst-{token}", 0.1)
        shutil.rmtree(self.temp, ignore_errors=True)


def wait_for(condition, process, timeout_s=90.0, what="it"):
    """Poll until ``condition()`` is true, while the process lives."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert process.poll() is None, f"ended with {process.returncode} before {what}"
        assert time.monotonic() < deadline, f"{what} did not happen in {timeout_s} s"
        time.sleep(0.05)


def steps_done(run_dir):
    """Number of finished training steps in a record that is being written."""
    try:
        return Path(run_dir, "metrics.jsonl").read_text().count('"reward/mean"')
    except OSError:
        return 0
