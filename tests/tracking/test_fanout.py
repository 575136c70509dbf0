import os
import pickle

import pytest

from bestiary.errors import BestiaryError, Owner
from bestiary.protocols import RunInfo, Tracker
from bestiary.tracking import NamedTracker, Trackers, read_metrics, read_samples, tag_ranks

OWNER = Owner("mine", "bestiary-mine", "0.2.0")


class Recorder:
    """Writes down its calls, and fails where it is told to."""

    def __init__(self, fails=()):
        self.fails = set(fails)
        self.calls = []

    def _call(self, name, *args):
        self.calls.append((name, *args))
        if name in self.fails:
            raise RuntimeError(f"no\n {name}")

    def start(self, run):
        self._call("start")

    def log(self, step, metrics):
        self._call("log", step)

    def samples(self, step, rows):
        self._call("samples", step, len(list(rows)))

    def finish(self, status):
        self._call("finish", status)


def _life(trackers, run_dir, attempt=1):
    trackers.start(RunInfo(run_dir, "r", {}, {}, attempt))
    for step in (1, 2):
        trackers.log(step, {"reward/mean": step})
        trackers.samples(step, ({"prompt": p} for p in "ab"))
    trackers.sync()
    trackers.finish("finished")


def test_each_tracker_gets_everything_in_order(tmp_path):
    one, two = Recorder(), Recorder()
    trackers = Trackers([NamedTracker("one", None, one), NamedTracker("two", OWNER, two)])
    assert isinstance(trackers, Tracker)
    _life(trackers, tmp_path)
    expected = [("start",), ("log", 1), ("samples", 1, 2), ("log", 2), ("samples", 2, 2)]
    assert one.calls == two.calls == [*expected, ("finish", "finished")]
    assert [r["step"] for r in read_metrics(tmp_path / "metrics.jsonl")] == [1, 2]
    assert [r["prompt"] for r in read_samples(tmp_path, 2)] == ["a", "b"]


@pytest.mark.parametrize("where", ["start", "log", "samples"])
def test_a_failing_tracker_is_reported_once_and_left_out(tmp_path, where):
    bad, good, said = Recorder([where, "finish"]), Recorder(), []
    trackers = Trackers(
        [NamedTracker("bad", OWNER, bad), NamedTracker("good", None, good)], report=said.append
    )
    _life(trackers, tmp_path)
    (line,) = said
    assert f"tracker 'bad' failed in {where}" in line
    assert f"RuntimeError: no {where} [" in line
    assert str(OWNER) in line
    assert str(tmp_path) in line
    assert [c[0] for c in bad.calls].count(where) == 1
    assert bad.calls[-1] == ("finish", "finished")  # it may hold a process or a file
    assert len(good.calls) == 6
    assert len(read_metrics(tmp_path / "metrics.jsonl")) == 2


def test_a_failure_to_close_is_reported(tmp_path):
    said = []
    trackers = Trackers([NamedTracker("bad", None, Recorder(["finish"]))], report=said.append)
    _life(trackers, tmp_path)
    assert len(said) == 1
    assert trackers.active == ()


def test_an_interrupt_is_not_swallowed(tmp_path):
    class Interrupted(Recorder):
        def log(self, step, metrics):
            raise KeyboardInterrupt

    trackers = Trackers([NamedTracker("x", None, Interrupted())])
    with pytest.raises(KeyboardInterrupt):
        _life(trackers, tmp_path)
    trackers.finish("stopped")


def test_a_record_that_cannot_be_written_ends_the_run_and_closes_the_others(tmp_path):
    other = Recorder()
    trackers = Trackers([NamedTracker("other", None, other)])
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    trackers.start(RunInfo(tmp_path, "r", {}, {}))
    with pytest.raises(BestiaryError, match=r"cannot write to the record .*metrics.jsonl"):
        trackers.log(1, {"x": 1.0})
    trackers.finish("failed")
    assert other.calls == [("start",), ("finish", "failed")]


def test_finish_twice_closes_once(tmp_path):
    one = Recorder()
    trackers = Trackers([NamedTracker("one", None, one)])
    _life(trackers, tmp_path)
    trackers.finish("failed")
    assert one.calls.count(("finish", "finished")) == 1
    assert ("finish", "failed") not in one.calls


def test_use_04_trackers_cannot_be_sent_to_a_worker():
    with pytest.raises(TypeError, match="controller"):
        pickle.dumps(Trackers())


def test_use_04_a_forked_worker_is_refused(tmp_path):
    trackers = Trackers()
    trackers.start(RunInfo(tmp_path, "r", {}, {}))
    child = os.fork()
    if child == 0:
        try:
            trackers.log(1, {"x": 1.0})
        except BestiaryError:
            os._exit(7)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 7
    trackers.finish("finished")
    assert read_metrics(tmp_path / "metrics.jsonl") == []


def test_metrics_of_ranks_are_tagged():
    assert tag_ranks([{"a": 1.0}, {"a": 2.0, "b/c": 3.0}]) == {
        "rank0/a": 1.0,
        "rank1/a": 2.0,
        "rank1/b/c": 3.0,
    }
