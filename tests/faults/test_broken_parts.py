"""A reward, loss or disk that fails: one clear line that names it, and an honest status."""

import json

import pytest
from run_help import SMALL, custom, records, train_here

from bestiary.errors import WorkerFailure

WORDS = [*SMALL, "algorithm=grpo", "steps=6", "eval.every=0", "eval.at_start=false", "run_dir=run"]


@pytest.fixture
def command(make_command, lab_site):
    return make_command(site=lab_site)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("raises", "ZeroDivisionError: the reward divides by zero"),
        ("too_few", "15"),
    ],
)
def test_rew_03_a_broken_reward_is_named_in_the_first_line(command, name, says):
    done = command("train", *WORDS, *custom(name))
    assert done.status == 1
    first = done.err.splitlines()[0]
    assert first.startswith("error: ")
    assert f"rewards.py:{name}" in first, done.err
    assert says in first
    assert "step 1" in first
    assert command.leftovers() == []
    found = json.loads((command.folder / "run" / "result.json").read_text())
    assert found["status"] == "failed"


def test_a_reward_file_that_is_not_there_is_refused(lab, tmp_path):
    words = ["algorithm=grpo", "steps=1", "reward=custom", "reward.path=no/such.py:f"]
    with pytest.raises(Exception, match=r"no/such\.py") as caught:
        train_here(words, tmp_path / "run", lab)
    assert "is not there" in str(caught.value)


def test_gradients_that_are_not_finite_are_skipped_then_an_error(lab, tmp_path):
    words = ["algorithm=grpo", "loss=lab_nan", "steps=9", "train_engine.max_skipped=2"]
    words += ["eval.every=0", *custom("letters")]
    with pytest.raises(WorkerFailure, match="gradient norm nan in 3 steps in a row") as caught:
        train_here(words, tmp_path / "run", lab)
    assert "max_skipped" in str(caught.value)
    kept = [r for r in records(tmp_path / "run") if r["step"] > 0]
    assert [r["step"] for r in kept] == [1, 2]
    assert [r["update/skipped"] for r in kept] == [1, 1]
    assert [r["version"] for r in kept] == [0, 0]


@pytest.mark.slow
def test_the_command_says_so_in_one_line(command):
    words = ["loss=lab_nan", "train_engine.max_skipped=1", "placement=inprocess"]
    done = command("train", *WORDS, *words, *custom("letters"))
    assert done.status == 1
    first = done.err.splitlines()[0]
    assert "gradient norm nan in 2 steps in a row" in first
    assert "NumericalError" in first
    assert "lower lr" in done.err
    assert command.leftovers() == []
