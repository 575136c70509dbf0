"""A checkpoint that is evaluated again has the numbers that its run recorded."""

import json
import os
import shutil
import sys
from argparse import Namespace

import pytest
from run_help import SMALL, custom, train_here
from safetensors.torch import load_file, save_file

from bestiary.cli.eval import _plan, evaluate
from bestiary.config.compose import compose_run
from bestiary.errors import CheckpointError, ConfigError
from bestiary.runtime.eval_job import run as evaluate_folder
from bestiary.runtime.loop import evaluate_session
from bestiary.runtime.session import open_session


@pytest.fixture(scope="module")
def trained(lab, tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("runs") / "run"
    words = ["algorithm=grpo", "steps=4", "eval.every=2", "eval.samples=4", "checkpoint.every=2"]
    train_here([*words, *custom("letters")], run_dir, lab)
    return run_dir


def prepared(trained, tmp_path, step):
    folder = tmp_path / "eval"
    (folder / "logs").mkdir(parents=True)
    (folder / "config.json").write_text((trained / "config.json").read_text())
    checkpoint = str(trained / "checkpoints" / f"step_{step}") if step else None
    (folder / "target.json").write_text(json.dumps({"checkpoint": checkpoint}))
    return folder


@pytest.mark.parametrize("step", [0, 2, 4])
def test_numbers_and_answers_are_those_of_the_run(trained, lab, tmp_path, step):
    found = evaluate_folder(prepared(trained, tmp_path, step))
    recorded = json.loads((trained / "samples" / f"eval_{step}.json").read_text())
    assert found.metrics == recorded["metrics"]
    assert found.answers == recorded["answers"]


def test_different_steps_have_different_numbers(trained):
    metrics = [
        json.loads((trained / "samples" / f"eval_{step}.json").read_text())["metrics"]
        for step in (0, 2, 4)
    ]
    assert metrics[0] != metrics[1] != metrics[2]


def test_the_exported_model_is_that_of_the_last_checkpoint(trained, lab, tmp_path):
    words = ["algorithm=grpo", "steps=0", "model=hf", f"model.path={trained / 'model'}"]
    own = ("model.hidden", "model.layers", "model.heads")
    small = [w for w in SMALL if not w.startswith((*own, "model=", "model.warm"))]
    words += [*small, "placement=inprocess", "eval.samples=4", *custom("letters")]
    with open_session(compose_run(words, None, lab), lab, tmp_path) as session:
        found = evaluate_session(session)
    recorded = json.loads((trained / "samples" / "eval_4.json").read_text())
    assert found.metrics == recorded["metrics"]


def test_only_what_an_evaluation_needs_can_be_set(trained, lab):
    plan = _plan(trained, ["eval.samples=9", "eval.greedy=false", "seed=5"], lab)
    assert (plan.run.eval.samples, plan.run.eval.greedy, plan.run.seed) == (9, False, 5)
    assert plan.run.steps == 4
    for word in ("algorithm.samples=2", "model.path=x", "eval.samples=1,2"):
        with pytest.raises(ConfigError, match="cannot set"):
            _plan(trained, [word], lab)
    with pytest.raises(ConfigError, match="wrong"):
        _plan(trained, ["eval.wrong=1"], lab)


def test_a_folder_without_a_checkpoint_is_refused(tmp_path):
    for source, says in ((tmp_path / "no", "not a folder"), (tmp_path, "no complete checkpoint")):
        with pytest.raises(CheckpointError, match=says):
            evaluate(Namespace(source=str(source), json=True, overrides=[], block_plugin=[]))


@pytest.mark.slow
def test_the_command_takes_a_checkpoint_from_its_own_folder(trained, monkeypatch, capsys):
    monkeypatch.chdir(trained / "checkpoints")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    status = evaluate(Namespace(source="step_2", json=True, overrides=[], block_plugin=[]))
    assert status == 0
    found = json.loads(capsys.readouterr().out)
    recorded = json.loads((trained / "samples" / "eval_2.json").read_text())
    assert found["metrics"] == recorded["metrics"]
    assert found["checkpoint"] == str(trained / "checkpoints" / "step_2")
    assert sorted(p.name for p in (trained / "eval").iterdir()) == ["1"]


def test_weights_of_another_shape_are_refused_by_name(trained, lab, tmp_path):
    folder = prepared(trained, tmp_path, 2)
    target = tmp_path / "hurt" / "step_2"
    shutil.copytree(trained / "checkpoints" / "step_2", target)
    file = target / "models" / "actor" / "rank_0.safetensors"
    tensors = load_file(file)
    name = next(iter(tensors))
    tensors[name] = tensors[name].flatten()[:-1].clone()
    save_file(tensors, file)
    (folder / "target.json").write_text(json.dumps({"checkpoint": str(target)}))
    with pytest.raises(CheckpointError, match="not a complete checkpoint"):
        evaluate_folder(folder)
