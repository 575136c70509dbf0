"""What every tracker must do, and a reader of W&B's own file."""

import os
import struct
import threading
from pathlib import Path

import psutil
import pytest

from bestiary.protocols import RunInfo, Tracker

STATUSES = ("finished", "failed", "stopped")


@pytest.fixture(autouse=True)
def _alone(monkeypatch, tmp_path):
    """No account, no netrc, no environment of the caller, and a working folder to watch."""
    for name in [n for n in os.environ if n.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("NETRC", raising=False)
    cwd = tmp_path / "cwd"
    cwd.mkdir()
    monkeypatch.chdir(cwd)


@pytest.fixture
def new_children():
    """Processes that were started since the test began: other tests may have left helpers."""
    before = set(psutil.Process().children(recursive=True))
    return lambda: [p for p in psutil.Process().children(recursive=True) if p not in before]


@pytest.fixture
def run_info(tmp_path):
    def make(attempt=1, name="trial", folder="run", **config):
        run_dir = tmp_path / folder
        run_dir.mkdir(exist_ok=True)
        return RunInfo(
            run_dir=run_dir,
            name=name,
            config={"algorithm": {"name": "grpo"}, "seed": 0, **config},
            manifest={"fingerprint": {"hash": "abc"}},
            attempt=attempt,
        )

    return make


@pytest.fixture
def conform(run_info, new_children, capfd):
    """Take a tracker through its life, in each order that a run may have, and look for traces."""

    def check(make, status):
        environ, threads = dict(os.environ), set(threading.enumerate())
        unused = make()
        unused.finish("failed")  # a run that dies before its start still closes what it has

        tracker = make()
        assert isinstance(tracker, Tracker)
        run = run_info(folder=f"run_{status}")
        tracker.start(run)
        tracker.log(0, {"eval/exact_match": 0.3})
        tracker.log(1, {"reward/mean": 0.25, "data/samples": 8, "loss/policy": float("nan")})
        tracker.samples(1, ({"prompt": "1+1=", "response": r, "reward": 1.0} for r in "23"))
        tracker.samples(2, [{"prompt": "2|2\n", "response": "4", "reward": None, "tag": "é"}])
        tracker.log(2, {"reward/mean": 0.5, "rank0/grad_norm": 1.0, "rank1/grad_norm": 2.0})
        tracker.samples(2, [])
        tracker.log(2, {"reward/mean": 0.75})
        tracker.finish(status)

        assert new_children() == []
        assert {t for t in threading.enumerate() if t not in threads and t.is_alive()} == set()
        assert dict(os.environ) == environ
        assert list(Path.cwd().iterdir()) == []
        assert capfd.readouterr() == ("", "")
        return run

    return check


@pytest.fixture
def wandb_records():
    return read_wandb_file


def read_wandb_file(path):
    """Records of a ``.wandb`` file: LevelDB's log format after a header of 7 bytes."""
    from wandb.proto import wandb_internal_pb2

    data = path.read_bytes()
    assert data[:4] == b":W&B"
    records, whole, position = [], b"", 7
    while position + 7 <= len(data):
        room = 32768 - position % 32768
        if room < 7:
            position += room
            continue
        _, length, kind = struct.unpack_from("<IHB", data, position)
        if kind == 0:
            break
        whole += data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # whole, or the last part
            record = wandb_internal_pb2.Record()
            record.ParseFromString(whole)
            records.append(record)
            whole = b""
    return records
