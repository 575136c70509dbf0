import json
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bestiary.errors import BestiaryError, DataError
from bestiary.protocols import RunInfo
from bestiary.tracking import JsonlTracker, read_metrics, read_records, read_samples
from bestiary.tracking.jsonl import AppendFile, encode_record


def _run(folder, attempt=1):
    return RunInfo(run_dir=Path(folder), name="r", config={}, manifest={}, attempt=attempt)


def _write(folder, attempt, steps, **metrics):
    tracker = JsonlTracker()
    tracker.start(_run(folder, attempt))
    for step in steps:
        tracker.log(step, metrics or {"reward/mean": attempt + step / 1000})
    tracker.finish("finished")
    return folder / "metrics.jsonl"


def test_step_stands_first_and_the_rest_is_sorted():
    line = encode_record(3, 1, {"reward/mean": 0.5, "data/samples": 8, "entropy": 1})
    assert line == '{"step": 3, "attempt": 1, "data/samples": 8, "entropy": 1, "reward/mean": 0.5}'


def test_what_is_not_finite_is_null_and_named():
    line = encode_record(1, 1, {"b": float("nan"), "a": float("-inf"), "c": 1.0})
    assert json.loads(line) == {
        "step": 1, "attempt": 1, "a": None, "b": None, "c": 1.0, "nonfinite": ["a", "b"],
    }  # fmt: skip


def test_numbers_of_other_libraries_are_written_as_json_numbers():
    line = encode_record(
        1, 1, {"i": np.int64(7), "f": np.float32(0.5), "z": np.array(2.0), "b": True}
    )
    assert json.loads(line) == {"step": 1, "attempt": 1, "i": 7, "f": 0.5, "z": 2.0, "b": 1}
    assert '"i": 7,' in line


def test_a_text_is_refused_by_name():
    with pytest.raises(DataError, match=r"'note'.*'good'.*a number is wanted"):
        encode_record(1, 1, {"note": "good"})


def test_res_05_each_step_once_and_both_attempts_apart(tmp_path):
    _write(tmp_path, 1, range(1, 213))
    path = _write(tmp_path, 2, range(201, 221))
    final = read_metrics(path)
    assert [r["step"] for r in final] == list(range(1, 221))
    assert [r["attempt"] for r in final] == [1] * 200 + [2] * 20
    assert [r["reward/mean"] for r in final] == [r["attempt"] + r["step"] / 1000 for r in final]
    everything = read_records(path)
    assert len(everything) == 212 + 20
    assert [r["step"] for r in everything if r["attempt"] == 1] == list(range(1, 213))


def test_steps_that_a_later_attempt_abandoned_are_left_out(tmp_path):
    _write(tmp_path, 1, range(1, 213))
    path = _write(tmp_path, 2, range(201, 204))
    assert [r["step"] for r in read_metrics(path)] == list(range(1, 204))


def test_a_repeated_step_replaces_the_earlier_one(tmp_path):
    path = _write(tmp_path, 1, [1], x=1.0)
    _write(tmp_path, 1, [1, 2], x=2.0)
    assert [(r["step"], r["x"]) for r in read_metrics(path)] == [(1, 2.0), (2, 2.0)]


@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(1, 12)), min_size=1, max_size=5)
)  # (first step, number of steps) of each attempt
def test_the_final_record_is_the_last_branch(attempts):
    alive = {}
    lines = []
    for attempt, (first, count) in enumerate(attempts, start=1):
        alive = {step: a for step, a in alive.items() if step < first}
        for step in range(first, first + count):
            alive[step] = attempt
            lines.append(encode_record(step, attempt, {}))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "metrics.jsonl"
        path.write_text("\n".join(lines) + "\n")
        assert {r["step"]: r["attempt"] for r in read_metrics(path)} == alive


@pytest.mark.parametrize("tail", [b'{"step": 3, "att', b'{"step": 3}', b"\0\0\0\0", b"x" * 200_000])
def test_a_torn_last_line_is_ignored_and_repaired(tmp_path, tail):
    path = _write(tmp_path, 1, [1, 2])
    with path.open("ab") as file:
        file.write(tail)
    assert [r["step"] for r in read_metrics(path)] == [1, 2]
    _write(tmp_path, 2, [3])
    assert [r["step"] for r in read_metrics(path)] == [1, 2, 3]
    assert [json.loads(line)["step"] for line in path.read_bytes().splitlines()] == [1, 2, 3]


def test_a_whole_last_line_without_its_end_is_kept(tmp_path):
    path = _write(tmp_path, 1, [1, 2])
    path.write_bytes(path.read_bytes().rstrip(b"\n"))
    assert [r["step"] for r in read_metrics(path)] == [1, 2]
    _write(tmp_path, 1, [3])
    assert [r["step"] for r in read_metrics(path)] == [1, 2, 3]


def test_a_file_of_one_torn_line_starts_anew(tmp_path):
    (tmp_path / "metrics.jsonl").write_bytes(b'{"st')
    path = _write(tmp_path, 1, [1])
    assert path.read_text().startswith('{"step": 1')


def test_a_broken_line_in_the_middle_is_an_error_with_its_number(tmp_path):
    path = _write(tmp_path, 1, [1, 2])
    path.write_bytes(b"garbage\n" + path.read_bytes())
    with pytest.raises(DataError, match=r"metrics.jsonl line 1 is not"):
        read_metrics(path)


def test_a_missing_record_is_an_error_with_its_path(tmp_path):
    with pytest.raises(DataError, match=r"nothing.jsonl: No such file"):
        read_metrics(tmp_path / "nothing.jsonl")


def test_kill_9_loses_no_step_that_was_logged(tmp_path):
    code = """
import os, signal, sys
from pathlib import Path
from bestiary.protocols import RunInfo
from bestiary.tracking.jsonl import JsonlTracker
t = JsonlTracker()
t.start(RunInfo(Path(sys.argv[1]), "r", {}, {}))
for step in range(1, 51):
    t.log(step, {"x": step})
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], timeout=60)
    assert done.returncode == -signal.SIGKILL
    assert [r["x"] for r in read_metrics(tmp_path / "metrics.jsonl")] == list(range(1, 51))


def test_a_full_disk_names_the_path(tmp_path):
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    tracker = JsonlTracker()
    tracker.start(_run(tmp_path))
    message = r"cannot write to the record .*metrics.jsonl: No space left on device\n.*resume"
    with pytest.raises(BestiaryError, match=message):
        tracker.log(1, {"x": 1.0})
    tracker.finish("failed")


def test_a_folder_that_cannot_be_made_names_the_path(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(BestiaryError, match=r"file/run/metrics.jsonl"):
        JsonlTracker().start(_run(tmp_path / "file" / "run"))


def test_logging_before_the_start_is_an_error():
    with pytest.raises(BestiaryError, match="before start"):
        JsonlTracker().log(1, {})


def test_append_goes_on_after_a_short_write(tmp_path, monkeypatch):
    file = AppendFile(tmp_path / "a")

    class Short:
        def __init__(self, inner):
            self.inner = inner

        def write(self, data):
            return self.inner.write(data[:3])

        def close(self):
            self.inner.close()

    file._file = Short(file._file)
    file.append("0123456789")
    file.close()
    assert (tmp_path / "a").read_text() == "0123456789\n"


def test_samples_of_the_last_attempt_are_read(tmp_path):
    for attempt in (1, 2):
        tracker = JsonlTracker()
        tracker.start(_run(tmp_path, attempt))
        tracker.samples(
            5, [{"prompt": "ü", "reward": float("nan"), "n": np.float64(1), "p": tmp_path}]
        )
        tracker.samples(5, [{"prompt": attempt, "parts": {"a": [float("inf")]}}])
        tracker.samples(6, [])
        tracker.finish("finished")
    first, second = read_samples(tmp_path, 5)
    assert first == {
        "step": 5, "attempt": 2, "prompt": "ü", "reward": None, "n": 1.0, "p": str(tmp_path),
    }  # fmt: skip
    assert second["parts"] == {"a": [None]}
    assert [p.name for p in (tmp_path / "samples").iterdir()] == ["step_5.jsonl"]
    assert "ü" in (tmp_path / "samples" / "step_5.jsonl").read_text(encoding="utf-8")
