"""The end of a run, whatever it is, as trackers, observers and result.json see it."""

import json
import sys

import pytest
from run_help import REWARDS, custom, records, train_here

from bestiary.cli.warm import supervised_plan, warm_key
from bestiary.config.compose import compose_run
from bestiary.errors import PlacementError, WorkerFailure
from bestiary.runtime.job import main

WORDS = ["algorithm=grpo", "steps=2", "eval.every=0", "eval.at_start=false"]


def run(lab, tmp_path, *words):
    calls = tmp_path / "calls"
    sys.modules["run_lab"].events.clear()
    calls_word = f"tracker.lab_calls.path={calls}"
    train_here([*WORDS, "tracker=lab_calls", calls_word, *words], tmp_path / "run", lab)
    return told(tmp_path)


def told(tmp_path):
    return (tmp_path / "calls").read_text().splitlines()


def kinds():
    return [type(event).__name__ for event in sys.modules["run_lab"].events]


def test_a_run_that_ends_well(lab, tmp_path):
    calls = run(lab, tmp_path, *custom("letters"))
    assert calls == ["start 1", "samples 1", "log 1", "log 2", "finish finished"]
    assert kinds() == ["Checkpoint", "RunEnd"]
    assert sys.modules["run_lab"].events[-1].status == "finished"
    found = json.loads((tmp_path / "run" / "result.json").read_text())
    assert found["status"] == "finished"
    assert found["metrics"]["reward/mean"] == records(tmp_path / "run")[-1]["reward/mean"]


def test_a_failure_in_a_worker_is_told_once_to_everybody(lab, tmp_path):
    with pytest.raises(WorkerFailure, match="broken on purpose"):
        run(lab, tmp_path, *custom("FailsOnCall", number=2))
    assert told(tmp_path) == ["start 1", "samples 1", "log 1", "finish failed"]
    assert kinds() == ["WorkerFailed", "RunEnd"]
    failed, end = sys.modules["run_lab"].events
    assert (failed.step, failed.rank) == (2, 0)
    assert failed.group
    assert "broken on purpose" in failed.cause
    assert (end.status, end.step) == ("failed", 1)


def test_an_interruption_is_stopped_not_failed(lab, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run(lab, tmp_path, "reward=custom", f"reward.path={REWARDS}:interrupts")
    assert told(tmp_path) == ["start 1", "finish stopped"]
    assert kinds() == ["RunEnd"]


def test_a_failure_before_the_first_step_closes_the_trackers_too(lab, tmp_path):
    with pytest.raises(WorkerFailure, match="no_such_function"):
        run(lab, tmp_path, "reward=custom", f"reward.path={REWARDS}:no_such_function")
    assert told(tmp_path) == ["start 1", "finish failed"]


def test_time_that_is_over_ends_the_run_cleanly_after_a_step(lab, tmp_path):
    calls = run(lab, tmp_path, *custom("letters"), "steps=500", "max_seconds=0.01")
    assert calls[-2:] == ["log 1", "finish finished"]
    assert (tmp_path / "run" / "checkpoints" / "step_1" / "COMPLETE").exists()
    assert "eval/exact_match" in records(tmp_path / "run")[-1]


def test_no_steps_evaluate_and_end(lab, tmp_path):
    calls = run(lab, tmp_path, *custom("letters"), "steps=0", "eval.at_start=true")
    assert calls == ["start 1", "log 0", "finish finished"]
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_a_folder_without_records_is_refused_in_one_line(tmp_path, capsys):
    (tmp_path / "config.json").write_text(json.dumps({"format": 99}))
    assert main([str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith("error: the saved configuration has format 99")
    assert json.loads((tmp_path / "result.json").read_text())["status"] == "failed"


def test_more_workers_than_this_process_are_refused_not_ignored(lab, tmp_path):
    with pytest.raises(PlacementError, match=r"one worker.*actor.*asks for 2"):
        train_here([*WORDS, *custom("letters"), "placement.workers=2"], tmp_path / "run", lab)


def test_the_warm_start_of_a_tiny_model_needs_no_worker_processes(lab):
    words = ["algorithm=grpo", "task=addition", "model=tiny", "cluster.object_store_mb=100"]
    plan = compose_run([*words, "timeout_s=77", "placement.workers=2"], None, lab)
    warm = supervised_plan(plan, plan.model.warm_start, lab)
    assert warm.run.cluster == plan.run.cluster
    assert (warm.run.timeout_s, warm.choices["placement"]) == (77, "inprocess")
    assert warm.options["placement"].workers == 1
    assert warm.choices["algorithm"] == "sft"
    elsewhere = compose_run(words, None, lab)
    other = supervised_plan(elsewhere, elsewhere.model.warm_start, lab)
    assert warm_key(warm, lab) == warm_key(other, lab)  # where it runs does not change the weights


def test_the_warm_start_of_another_model_runs_where_the_run_will(lab, tmp_path):
    words = ["algorithm=grpo", "task=addition", "model=hf", f"model.path={tmp_path}"]
    words += ["model.warm_start.steps=5", "placement.workers=2"]
    plan = compose_run(words, None, lab)
    warm = supervised_plan(plan, plan.model.warm_start, lab)
    assert (warm.choices["placement"], warm.options["placement"].workers) == ("colocate", 2)


def test_an_algorithm_without_a_scorer_says_what_evaluation_needs(lab):
    from types import SimpleNamespace

    from bestiary.errors import PluginError
    from bestiary.runtime.components import Components
    from bestiary.runtime.loop import evaluate_session

    plan = compose_run(["algorithm=grpo", "task=addition", "model=tiny"], None, lab)
    session = SimpleNamespace(
        plan=plan,
        algorithm=SimpleNamespace(evaluate=lambda held_out: None),
        prompts=SimpleNamespace(held_out=None),
        handles={"actor": None},
        components=Components(lab),
    )
    with pytest.raises(PluginError, match="no role 'reward'"):
        evaluate_session(session)
