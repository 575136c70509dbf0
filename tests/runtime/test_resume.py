"""A run that was interrupted and resumed is the run that was not."""

import json

import numpy as np
import pytest
from run_help import custom, records, train_here, without_times
from safetensors.numpy import load_file

from bestiary.errors import CheckpointError, WorkerFailure
from bestiary.runtime.checkpoint import complete_checkpoints, find_checkpoint
from bestiary.tracking.jsonl import read_metrics

WORDS = [
    "algorithm=lab_adaptive", "sampler=curriculum", "deterministic=true", "seed=3",
    "eval.every=2", "checkpoint.every=2", "checkpoint.keep=10", "train_engine.warmup_steps=3",
]  # fmt: skip
"""An algorithm, a sampler, a data order and an optimizer with state."""

FAILS = 6
"""Calls of the reward: evaluation at 0, steps 1 and 2, evaluation at 2, steps 3 and 4."""


@pytest.fixture(scope="module")
def undisturbed(lab, tmp_path_factory):
    """Five steps in one go."""
    run_dir = tmp_path_factory.mktemp("runs") / "whole"
    train_here([*WORDS, "steps=5", *custom("FailsOnCall")], run_dir, lab)
    return run_dir


@pytest.fixture(scope="module")
def resumed(lab, tmp_path_factory):
    """The same run, which fails in step 4 after a checkpoint at 2, and is resumed."""
    run_dir = tmp_path_factory.mktemp("runs") / "broken"
    with pytest.raises(WorkerFailure, match="broken on purpose"):
        train_here([*WORDS, "steps=5", *custom("FailsOnCall", number=FAILS)], run_dir, lab)
    train_here([*WORDS, "steps=5", "resume=auto", *custom("FailsOnCall")], run_dir, lab)
    return run_dir


def test_every_number_is_equal_bit_for_bit(undisturbed, resumed):
    ours, theirs = (
        {int(r["step"]): without_times(r) for r in read_metrics(run / "metrics.jsonl")}
        for run in (resumed, undisturbed)
    )
    assert list(ours) == list(theirs) == [0, 1, 2, 3, 4, 5]
    for step in ours:
        assert ours[step] == theirs[step], f"step {step}"
    assert {"loss/policy", "grad_norm", "reward/mean", "kl/reference", "kl/coef"} <= set(ours[3])
    assert len({r["reward/mean"] for r in list(ours.values())[1:]}) > 1
    assert all(r["grad_norm"] > 0 for r in list(ours.values())[1:])


def test_the_exported_weights_are_equal_bit_for_bit(undisturbed, resumed):
    ours, theirs = (
        load_file(run / "model" / "model.safetensors") for run in (resumed, undisturbed)
    )
    assert ours.keys() == theirs.keys()
    assert all(np.array_equal(ours[name], theirs[name]) for name in ours)


def test_res_05_the_record_has_each_step_once_and_keeps_both_attempts(resumed):
    lines = records(resumed)
    assert [(r["attempt"], r["step"]) for r in lines] == [
        (1, 0), (1, 1), (1, 2), (1, 3), (2, 3), (2, 4), (2, 5),
    ]  # fmt: skip
    kept = read_metrics(resumed / "metrics.jsonl")
    assert [(int(r["attempt"]), int(r["step"])) for r in kept] == [
        (1, 0), (1, 1), (1, 2), (2, 3), (2, 4), (2, 5),
    ]  # fmt: skip
    assert json.loads((resumed / "manifest.json").read_text())["attempt"] == 2
    assert json.loads((resumed / "manifest-1.json").read_text())["attempt"] == 1
    assert json.loads((resumed / "result.json").read_text())["status"] == "finished"


def test_res_01_the_data_go_on_in_the_same_order(undisturbed, resumed):
    ours, theirs = (find_checkpoint(run).state() for run in (resumed, undisturbed))
    assert ours["source"] == theirs["source"]
    assert ours["sampler"]["order"] == theirs["sampler"]["order"]
    drawn = [
        [row["uid"] for row in json.loads((run / "samples" / "eval_5.json").read_text())["answers"]]
        for run in (resumed, undisturbed)
    ]
    assert drawn[0] == drawn[1]


def test_res_03_state_of_algorithm_and_sampler_is_in_the_checkpoint(undisturbed, resumed):
    ours, theirs = (find_checkpoint(run).state() for run in (resumed, undisturbed))
    assert ours["algorithm"] == theirs["algorithm"]
    assert ours["sampler"] == theirs["sampler"]
    assert len(ours["sampler"]["seen"]) > 4  # what the sampler learned before the interruption
    coef = [r["kl/coef"] for r in read_metrics(undisturbed / "metrics.jsonl") if "kl/coef" in r]
    assert len(set(coef)) == 5
    assert ours["algorithm"]["coef"] == coef[-1] != 0.2


def test_res_07_the_reference_keeps_the_base_weights(undisturbed, resumed):
    ours, theirs = (
        {int(r["step"]): r for r in read_metrics(run / "metrics.jsonl")}
        for run in (resumed, undisturbed)
    )
    assert ours[3]["attempt"] == 2
    assert ours[3]["kl/reference"] == theirs[3]["kl/reference"] > 1e-6


def test_counters_go_on(resumed):
    kept = {int(r["step"]): r for r in read_metrics(resumed / "metrics.jsonl")}
    tokens = [kept[step]["data/tokens_generated"] for step in range(1, 6)]
    assert tokens == sorted(tokens)
    assert [kept[step]["version"] for step in range(1, 6)] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("word", "was", "now"),
    [
        ("model.hidden=64", "model.hidden=32", "model.hidden=64"),
        ("seed=4", "seed=3", "seed=4"),
        ("task.digits=3", "task.digits=2", "task.digits=3"),
        ("algorithm=grpo", "algorithm=lab_adaptive", "algorithm=grpo"),
    ],
)
def test_res_08_another_run_is_refused_before_any_write(resumed, lab, word, was, now):
    before = {p: p.stat().st_mtime_ns for p in resumed.rglob("*") if p.is_file()}
    with pytest.raises(CheckpointError) as caught:
        train_here([*WORDS, "steps=9", "resume=auto", *custom("letters"), word], resumed, lab)
    assert was in str(caught.value)
    assert now in str(caught.value)
    assert {p: p.stat().st_mtime_ns for p in resumed.rglob("*") if p.is_file()} == before


def test_res_08_a_checkpoint_is_refused_by_other_plugins_and_left_alone(undisturbed, lab, tmp_path):
    words = [*WORDS, "steps=6", f"resume={undisturbed}", *custom("letters"), "sampler=uniform"]
    with pytest.raises(CheckpointError) as caught:
        train_here(words, tmp_path / "branch", lab)
    assert "choices.sampler was 'curriculum' and is 'uniform'" in str(caught.value)
    assert not (tmp_path / "branch" / "checkpoints").exists()
    assert [c.step for c in complete_checkpoints(undisturbed / "checkpoints")[0]] == [2, 4, 5]


def test_a_finished_run_that_is_resumed_changes_nothing(lab, tmp_path):
    words = ["algorithm=grpo", "steps=2", "eval.every=0", *custom("letters")]
    run_dir = tmp_path / "run"
    train_here(words, run_dir, lab)
    made = find_checkpoint(run_dir).path.stat().st_mtime_ns
    first = json.loads((run_dir / "result.json").read_text())["metrics"]
    train_here([*words, "resume=auto"], run_dir, lab)
    assert find_checkpoint(run_dir).path.stat().st_mtime_ns == made
    assert [r["step"] for r in records(run_dir)] == [0, 1, 2]
    result = json.loads((run_dir / "result.json").read_text())
    assert result["status"] == "finished"
    assert result["metrics"] == first
    assert {"reward/mean", "eval/exact_match"} <= set(first)


def test_going_back_to_an_earlier_step_starts_a_branch(lab, tmp_path):
    words = ["algorithm=grpo", "checkpoint.every=1", "checkpoint.keep=5", "eval.every=0"]
    words += ["eval.at_start=false", *custom("letters")]
    run_dir = tmp_path / "run"
    train_here([*words, "steps=3"], run_dir, lab)
    (run_dir / "checkpoints" / "step_9").mkdir()  # a save that was cut short
    earlier = run_dir / "checkpoints" / "step_1"
    train_here([*words, "steps=2", f"resume={earlier}"], run_dir, lab)
    assert find_checkpoint(run_dir).step == 2  # not 3, which is of the branch that was given up
    assert (run_dir / "checkpoints" / "abandoned-2" / "step_3" / "COMPLETE").exists()


def test_fail_01_resume_auto_skips_what_is_not_complete_and_says_so(lab, tmp_path, caplog):
    words = ["algorithm=grpo", "checkpoint.every=1", "eval.every=0", "eval.at_start=false"]
    words += custom("letters")
    run_dir = tmp_path / "run"
    train_here([*words, "steps=2"], run_dir, lab)
    (run_dir / "checkpoints" / "step_2" / "COMPLETE").unlink()
    train_here([*words, "steps=3", "resume=auto"], run_dir, lab)
    assert "incomplete checkpoints: step_2" in caplog.text
    assert [(r["attempt"], r["step"]) for r in records(run_dir)][2:] == [(2, 2), (2, 3)]


def test_a_run_may_go_on_in_a_folder_of_its_own(undisturbed, lab, tmp_path):
    words = [*WORDS, "steps=6", f"resume={undisturbed / 'checkpoints' / 'step_4'}"]
    branch = tmp_path / "branch"
    train_here([*words, *custom("FailsOnCall")], branch, lab)
    ours = {int(r["step"]): without_times(r) for r in records(branch)}
    theirs = {int(r["step"]): without_times(r) for r in records(undisturbed)}
    assert list(ours) == [5, 6]
    evaluated = {name for name in theirs[5] if name.startswith("eval/")}  # its last step
    assert ours[5] == {n: v for n, v in theirs[5].items() if n not in evaluated}
    assert [c.step for c in complete_checkpoints(undisturbed / "checkpoints")[0]] == [2, 4, 5]
