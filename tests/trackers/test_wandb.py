import json
import multiprocessing
import os
import subprocess
import sys
import time

import psutil
import pytest

from bestiary.tracking import NamedTracker, Trackers, read_metrics, tag_ranks
from bestiary_wandb.access import HIDDEN, has_key, resolve_mode, without_secrets
from bestiary_wandb.options import WandbOptions
from bestiary_wandb.tracker import WandbTracker

STEPS = 10
WORKERS = 4


def _rows(records):
    """History rows as dictionaries, keys of nested names joined."""
    return [
        {
            (item.key or "/".join(item.nested_key)): json.loads(item.value_json)
            for item in r.history.item
        }
        for r in records
        if r.WhichOneof("record_type") == "history"
    ]


def _local_runs(run_dir):
    return sorted(run_dir.rglob("*.wandb"))


def _worker(rank, queue):
    for step in range(1, STEPS + 1):
        queue.put((step, rank, {"grad_norm": rank + step / 100}))


def test_use_04_four_workers_make_one_local_run_with_one_record_a_step(
    run_info, wandb_records, new_children
):
    run = run_info()
    failures = []
    trackers = Trackers(
        [NamedTracker("wandb", None, WandbTracker(WandbOptions()))], report=failures.append
    )
    trackers.start(run)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    workers = [context.Process(target=_worker, args=(rank, queue)) for rank in range(WORKERS)]
    for worker in workers:
        worker.start()
    got = {}
    for _ in range(WORKERS * STEPS):
        step, rank, metrics = queue.get(timeout=30)
        got.setdefault(step, {})[rank] = metrics
    for worker in workers:
        worker.join(timeout=30)
    for step, by_rank in sorted(got.items()):
        trackers.log(step, {"reward/mean": 0.1} | tag_ranks([by_rank[r] for r in sorted(by_rank)]))
        trackers.samples(step, [{"prompt": "1+1=", "response": "2", "reward": 1.0}])
    trackers.finish("finished")

    assert failures == []
    (file,) = _local_runs(run.run_dir)
    rows = _rows(wandb_records(file))
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
    for row in rows:
        assert row["reward/mean"] == 0.1
        assert [row[f"rank{r}/grad_norm"] for r in range(4)] == [
            r + row["step"] / 100 for r in range(4)
        ]
        assert row["samples/nrows"] == 1
    assert len(read_metrics(run.run_dir / "metrics.jsonl")) == STEPS
    assert new_children() == []


def test_res_05_a_resumed_run_keeps_its_id_and_an_axis_of_its_own(run_info, wandb_records):
    ids = []
    for attempt, steps in ((1, range(195, 213)), (2, range(201, 221))):
        tracker = WandbTracker(WandbOptions())
        tracker.start(run_info(attempt=attempt))
        for step in steps:
            tracker.log(step, {"reward/mean": attempt})
        tracker.finish("finished")
    rows = []
    for file in _local_runs(run_info().run_dir):
        records = wandb_records(file)
        ids += [r.run.run_id for r in records if r.WhichOneof("record_type") == "run"]
        rows += _rows(records)
        axes = [r.metric for r in records if r.WhichOneof("record_type") == "metric"]
        assert any(m.glob_name == "*" and m.step_metric == "step" for m in axes)
    assert len(set(ids)) == 1
    rows.sort(key=lambda row: row["attempt"])
    assert [row["step"] for row in rows] == [*range(195, 213), *range(201, 221)]
    last = {row["step"]: row["attempt"] for row in rows}
    assert {step for step, attempt in last.items() if attempt == 2} == set(range(201, 221))


def test_config_has_the_fingerprint_and_no_secret(run_info, wandb_records, monkeypatch):
    monkeypatch.setenv("SOME_API_KEY", "sk-environment")
    run = run_info(reward={"api_key": "sk-very-secret", "max_tokens": 8, "hf_token": "hf_abc"})
    tracker = WandbTracker(WandbOptions(tags=("a", "b"), group="g"))
    tracker.start(run)
    tracker.log(1, {"reward/mean": 1.0})
    tracker.finish("failed")
    (file,) = _local_runs(run.run_dir)
    records = wandb_records(file)
    (started,) = [r.run for r in records if r.WhichOneof("record_type") == "run"]
    config = {item.key: json.loads(item.value_json) for item in started.config.update}
    assert config["fingerprint"] == {"hash": "abc"}
    assert config["reward"] == {"api_key": HIDDEN, "max_tokens": 8, "hf_token": HIDDEN}
    assert (started.run_group, list(started.tags)) == ("g", ["a", "b"])
    everything = b"".join(p.read_bytes() for p in run.run_dir.rglob("*") if p.is_file())
    assert b"sk-" not in everything
    assert b"hf_abc" not in everything
    exits = [r.exit.exit_code for r in records if r.WhichOneof("record_type") == "exit"]
    assert exits == [1]


def test_no_fault_reporting_and_the_environment_stays(run_info, new_children, monkeypatch):
    tracker = WandbTracker(WandbOptions())
    tracker.start(run_info())
    try:
        (service,) = new_children()
        assert "--no-observability" in service.cmdline()
        assert "WANDB_ERROR_REPORTING" not in os.environ
    finally:
        tracker.finish("stopped")
    assert not service.is_running()


def test_kill_9_leaves_no_process_of_wandb(tmp_path):
    code = """
import os, signal, sys
from pathlib import Path
import psutil
from bestiary.protocols import RunInfo
from bestiary_wandb.options import WandbOptions
from bestiary_wandb.tracker import WandbTracker
t = WandbTracker(WandbOptions())
t.start(RunInfo(Path(sys.argv[1]), "n", {}, {}))
print(*(p.pid for p in psutil.Process().children(recursive=True)), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, timeout=60
    )
    pids = [int(pid) for pid in done.stdout.split()]
    assert len(pids) == 1
    deadline = time.monotonic() + 30
    while any(_runs(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(_runs(pid) for pid in pids)


def _runs(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_online_without_a_key_is_an_error_and_not_a_question(run_info, monkeypatch):
    monkeypatch.setattr("builtins.input", lambda *a: pytest.fail("asked for a key"))
    tracker = WandbTracker(WandbOptions(mode="online"))
    with pytest.raises(ValueError, match=r"WANDB_API_KEY.*mode=offline"):
        tracker.start(run_info())
    tracker.finish("failed")


@pytest.mark.parametrize(
    ("mode", "environ", "expected"),
    [
        ("auto", {}, "offline"),
        ("auto", {"WANDB_API_KEY": "k"}, "online"),
        ("auto", {"WANDB_API_KEY": "k", "WANDB_MODE": "offline"}, "offline"),
        ("auto", {"WANDB_MODE": "disabled"}, "disabled"),
        ("offline", {"WANDB_API_KEY": "k"}, "offline"),
        ("online", {"WANDB_API_KEY": "k", "WANDB_MODE": "offline"}, "online"),
        ("disabled", {"WANDB_API_KEY": "k"}, "disabled"),
    ],
)
def test_mode(mode, environ, expected, tmp_path):
    assert resolve_mode(mode, environ, tmp_path) == expected


def test_a_key_in_netrc_counts_for_its_own_server_only(tmp_path):
    (tmp_path / ".netrc").write_text(
        "machine api.wandb.ai login user password k\ndefault login x\n"
    )
    (tmp_path / ".netrc").chmod(0o600)
    assert has_key({}, tmp_path)
    assert not has_key({"WANDB_BASE_URL": "https://wandb.example.org"}, tmp_path)
    assert not has_key({"NETRC": str(tmp_path / "none")}, tmp_path)


def test_a_broken_netrc_is_no_key(tmp_path):
    (tmp_path / ".netrc").write_text("machine")
    assert not has_key({}, tmp_path)


def test_secrets_at_any_depth_are_hidden_and_counts_are_not():
    given = {"a": [{"auth": "x"}], "password": "p", "tokens": "many", "token": "", "n_token": 3}
    assert without_secrets(given) == {
        "a": [{"auth": HIDDEN}],
        "password": HIDDEN,
        "tokens": "many",
        "token": "",
        "n_token": 3,
    }


@pytest.mark.parametrize("options", [{"mode": "onlin"}, {"project": ""}, {"upload_wait_s": 0.0}])
def test_options_are_checked(options):
    with pytest.raises(ValueError, match="wandb"):
        WandbOptions(**options)
