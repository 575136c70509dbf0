"""Checkpoints: complete or not there (FAIL-01)."""

import json
import os
import subprocess
import sys

import pytest

from bestiary.errors import CheckpointError, WorkerFailure
from bestiary.runtime.checkpoint import (
    MARKER,
    complete_checkpoints,
    find_checkpoint,
    set_aside_later,
    write_checkpoint,
)


def weights(text="weights"):
    def save(folder):
        (folder / "actor").mkdir()
        (folder / "actor" / "rank_0.safetensors").write_text(text)

    return save


def write(run, step, keep=10, save=None):
    return write_checkpoint(
        run / "checkpoints", step, {"step": step}, save or weights(f"of {step}"), keep=keep
    )


def names(run):
    return sorted(path.name for path in (run / "checkpoints").iterdir())


def test_what_was_written_is_read_back(tmp_path):
    write(tmp_path, 3)
    found = find_checkpoint(tmp_path)
    assert found.step == 3
    assert found.state() == {"step": 3}
    assert (found.model("actor") / "rank_0.safetensors").read_text() == "of 3"
    marker = json.loads((found.path / MARKER).read_text())
    assert marker["models/actor/rank_0.safetensors"] == len("of 3")


def test_fail_01_the_newest_complete_one_is_chosen_and_the_rest_is_named(tmp_path):
    write(tmp_path, 10)
    model_only = tmp_path / "checkpoints" / "step_20" / "models" / "actor"
    model_only.mkdir(parents=True)
    (model_only / "rank_0.safetensors").write_text("half")
    (tmp_path / "checkpoints" / "step_30").mkdir()
    assert find_checkpoint(tmp_path).path.name == "step_10"
    complete, broken = complete_checkpoints(tmp_path / "checkpoints")
    assert [c.step for c in complete] == [10]
    assert {path.name for path in broken} == {"step_20", "step_30"}
    with pytest.raises(CheckpointError, match="step_20 is not a complete checkpoint"):
        find_checkpoint(tmp_path / "checkpoints" / "step_20")


def test_order_is_by_number_not_by_name(tmp_path):
    for step in (9, 100, 20):
        write(tmp_path, step)
    assert [c.step for c in complete_checkpoints(tmp_path / "checkpoints")[0]] == [9, 20, 100]


@pytest.mark.parametrize("damage", ["shorter", "missing", "torn marker", "empty marker"])
def test_a_damaged_checkpoint_does_not_count(tmp_path, damage):
    write(tmp_path, 1)
    hurt = write(tmp_path, 2)
    file = hurt.model("actor") / "rank_0.safetensors"
    marker = hurt.path / MARKER
    if damage == "shorter":
        file.write_text("o")
    elif damage == "missing":
        file.unlink()
    else:
        marker.write_text(marker.read_text()[:10] if damage == "torn marker" else "{}")
    assert find_checkpoint(tmp_path).step == 1


def test_none_at_all_is_an_error_that_names_the_folder_and_what_was_skipped(tmp_path):
    (tmp_path / "checkpoints" / "step_5").mkdir(parents=True)
    with pytest.raises(CheckpointError, match=r"no complete checkpoint.*step_5"):
        find_checkpoint(tmp_path)


def test_only_the_newest_are_kept(tmp_path):
    for step in (1, 2, 3, 4):
        write(tmp_path, step, keep=2)
    assert names(tmp_path) == ["step_3", "step_4"]


def test_the_old_one_goes_only_after_the_new_one_is_complete(tmp_path):
    write(tmp_path, 1, keep=1)
    seen = []

    def save(folder):
        seen.extend(c.step for c in complete_checkpoints(tmp_path / "checkpoints")[0])
        weights()(folder)

    write(tmp_path, 2, keep=1, save=save)
    assert seen == [1]
    assert names(tmp_path) == ["step_2"]


@pytest.mark.parametrize("cut", [1, 2])
def test_a_step_that_is_saved_again_is_there_whenever_the_process_dies(tmp_path, monkeypatch, cut):
    write(tmp_path, 7, save=weights("first"), keep=1)
    rename, calls = os.rename, []

    def dies(old, new):
        calls.append(old)
        if len(calls) == cut:
            raise SystemExit("killed")
        rename(old, new)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", dies)
        with pytest.raises(SystemExit):
            write(tmp_path, 7, save=weights("second"), keep=1)
    assert (find_checkpoint(tmp_path).model("actor") / "rank_0.safetensors").read_text() == "first"
    write(tmp_path, 7, save=weights("second"), keep=1)
    assert (find_checkpoint(tmp_path).model("actor") / "rank_0.safetensors").read_text() == "second"
    assert names(tmp_path) == ["step_7"]


def test_checkpoints_of_a_branch_that_was_given_up_are_set_aside(tmp_path):
    for step in (2, 4, 6):
        write(tmp_path, step)
    moved = set_aside_later(tmp_path / "checkpoints", 2, attempt=2)
    assert [p.relative_to(tmp_path / "checkpoints").as_posix() for p in moved] == [
        "abandoned-2/step_4",
        "abandoned-2/step_6",
    ]
    assert find_checkpoint(tmp_path).step == 2
    assert find_checkpoint(moved[0]).step == 4


def test_later_steps_of_another_branch_never_push_out_the_new_one(tmp_path):
    for step in (2, 4, 6):
        write(tmp_path, step)
    write(tmp_path, 3, keep=2)
    assert "step_3" in names(tmp_path)


def test_what_is_left_of_a_save_that_was_cut_short_is_replaced(tmp_path):
    aside = tmp_path / "checkpoints" / ".step_4.writing"
    aside.mkdir(parents=True)
    (aside / "rubbish").write_text("x")
    made = write(tmp_path, 4)
    assert not (made.path / "rubbish").exists()
    assert names(tmp_path) == ["step_4"]


FULL = """
import resource, sys
from pathlib import Path
from bestiary.errors import CheckpointError
from bestiary.runtime.checkpoint import complete_checkpoints, write_checkpoint

root, how = Path(sys.argv[1]), sys.argv[2]
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))

def save(folder):
    (folder / "actor").mkdir()
    (folder / "actor" / "small").write_bytes(bytes(1000))
    if how == "plain":
        (folder / "actor" / "rank_0.safetensors").write_bytes(bytes(100_000))
        return
    import torch
    from safetensors.torch import save_file
    from bestiary.distributed.failures import Failure, RankError, failure_error
    try:
        save_file({"x": torch.zeros(100_000)}, folder / "actor" / "rank_0.safetensors")
    except Exception as error:
        told = RankError.of(error)
        failed = Failure("actor", 1, "host", 1, told.kind, told.type_name, told.message)
        raise failure_error([failed])

try:
    write_checkpoint(root, 40, {}, save, keep=1)
except CheckpointError as error:
    print(error.exit_code, error)
print([c.step for c in complete_checkpoints(root)[0]], sorted(p.name for p in root.iterdir()))
"""


@pytest.mark.parametrize("how", ["plain", "in a worker"])
def test_fail_01_a_full_disk_leaves_the_old_one_and_names_path_and_bytes(tmp_path, how):
    write(tmp_path, 10)
    root = tmp_path / "checkpoints"
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(root), how], capture_output=True, text=True, timeout=120
    )
    first, *_, last = done.stdout.splitlines()
    assert first.startswith("1 "), done  # a run that had started: not status 2
    assert str(root / "step_40") in first
    assert "free" in done.stdout
    assert "bytes were written" in done.stdout
    assert "File too large" in done.stdout
    assert last == "[10] ['step_10']"


def test_an_error_of_a_worker_leaves_nothing_half_written(tmp_path):
    write(tmp_path, 1)

    def save(folder):
        weights()(folder)
        raise WorkerFailure("rank 1 killed by signal 9 at step 2")

    with pytest.raises(WorkerFailure, match="rank 1 killed by signal 9"):
        write(tmp_path, 2, save=save)
    assert names(tmp_path) == ["step_1"]
