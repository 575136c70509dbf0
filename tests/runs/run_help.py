"""Whole runs for tests: small, in this process or as the command line starts them."""

import contextlib
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil

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


def train_here(words, run_dir, plugins):
    """What ``bestiary train`` does, without a process of its own; returns the last metrics."""
    from bestiary.config.compose import compose_run
    from bestiary.config.manifest import manifest, write_manifest
    from bestiary.config.run_dir import claim, write_config
    from bestiary.runtime.job import train

    plan = compose_run(
        [*SMALL, "placement=inprocess", f"run_dir={run_dir}", *words], None, plugins
    )
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
    left: list[str] = field(default_factory=list)


class Command:
    """``bestiary`` in a process of its own, watched for what it leaves behind."""

    def __init__(self, folder: Path, site: Path | None = None, **variables: str) -> None:
        self.folder = folder
        paths = [str(p) for p in (site, FOLDER if site else None) if p]
        paths += [p for p in (os.environ.get("PYTHONPATH"),) if p]
        self.mark = f"bst-test-{os.getpid()}-{time.monotonic_ns()}"
        self.env = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(paths),
            "COLUMNS": "200",
            "BESTIARY_TEST": self.mark,
            "OMP_NUM_THREADS": "1",
            **variables,
        }
        self._segments = set(os.listdir("/dev/shm"))
        self._temporary = set(Path("/tmp").glob("bst-*"))

    def start(self, *words: object) -> subprocess.Popen:
        argv = [sys.executable, "-m", "bestiary.cli.main", *map(str, words)]
        out, err = (self.folder / name for name in ("stdout", "stderr"))
        with out.open("w") as o, err.open("w") as e:
            return subprocess.Popen(
                argv, cwd=self.folder, env=self.env, stdout=o, stderr=e, start_new_session=True
            )

    def end(self, process: subprocess.Popen, timeout_s: float = 120.0) -> Done:
        """Wait for the end; a command that does not end is killed and fails the test."""
        began = time.monotonic()
        try:
            status = process.wait(timeout_s)
        finally:
            process.kill()
        out, err = ((self.folder / name).read_text() for name in ("stdout", "stderr"))
        return Done(status, out, err, time.monotonic() - began)

    def __call__(self, *words: object, timeout_s: float = 120.0) -> Done:
        return self.end(self.start(*words), timeout_s)

    def processes(self) -> list[psutil.Process]:
        """Live processes that this command or its children started."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.status() == psutil.STATUS_ZOMBIE:
                    continue
                if process.environ().get("BESTIARY_TEST") == self.mark:
                    found.append(process)
        return found

    def leftovers(self, patience_s: float = 0.0) -> list[str]:
        """Processes of the command, and job folders, that are still there."""
        deadline = time.monotonic() + patience_s
        while True:
            left = [f"process {p.pid}" for p in self.processes()]
            if not left or time.monotonic() > deadline:
                return left
            time.sleep(0.2)


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
        return sum('"reward/mean"' in line for line in Path(run_dir, "metrics.jsonl").open())
    except OSError:
        return 0
