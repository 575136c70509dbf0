"""One run on two worker processes, and what can be done with it afterwards."""

import json
import math
import re

import pytest
from run_help import SMALL, custom, records

from bestiary.tracking.jsonl import read_metrics

pytestmark = pytest.mark.slow

WORDS = [
    *SMALL, *custom("letters"), "algorithm=grpo", "algorithm.kl_coef=0.05", "placement.workers=2",
    "tracker=[wandb,tensorboard]", "eval.every=2", "display=plain", "run_dir=run",
]  # fmt: skip
COLUMNS = {
    "step", "version", "reward/mean", "kl/reference", "entropy", "response_len/mean",
    "loss/policy", "grad_norm", "throughput/tokens_per_s", "time/rollout_s", "time/score_s",
    "time/update_s", "time/sync_s", "time/step_s", "data/tokens_generated", "data/samples",
    "driver/bytes",
}  # fmt: skip


@pytest.fixture(scope="module")
def command(make_command):
    return make_command()


@pytest.fixture(scope="module")
def first(command):
    """Two steps."""
    done = command("train", *WORDS, "steps=2")
    assert done.status == 0, done
    return done


@pytest.fixture(scope="module")
def run_dir(command, first):
    return command.folder / "run"


def test_the_record_has_every_column_of_every_step(run_dir):
    kept = {int(r["step"]): r for r in read_metrics(run_dir / "metrics.jsonl")}
    assert list(kept)[:3] == [0, 1, 2]
    for step in (1, 2):
        missing = COLUMNS - set(kept[step])
        assert not missing - ({"time/sync_s"} if step == 1 else set()), missing
        assert all(math.isfinite(kept[step][n]) for n in COLUMNS - {"time/sync_s"})
    assert {"eval/exact_match", "eval/greedy"} <= set(kept[2])
    assert kept[2]["kl/reference"] > 0  # after a step the policy is not the reference
    assert kept[1]["kl/reference"] == pytest.approx(0.0, abs=1e-6)
    assert kept[2]["version"] == 2
    assert kept[2]["grad_norm"] > 0
    phases = sum(kept[2][f"time/{p}_s"] for p in ("rollout", "score", "update", "sync", "other"))
    assert phases >= 0.9 * kept[2]["time/step_s"]


def test_tokens_do_not_go_through_the_controller(run_dir):
    kept = records(run_dir)
    assert all(r["driver/bytes"] < 64 << 10 for r in kept if r["step"] in (1, 2))


def test_the_manifest_says_what_made_the_run(run_dir):
    found = json.loads((run_dir / "manifest.json").read_text())
    assert found["seed"] == 0
    assert found["choices"]["algorithm"] == "grpo"
    assert found["owners"]["algorithm"].startswith("grpo (bestiary-grpo")
    assert {"torch", "ray", "transformers"} <= set(found["packages"])
    assert any(p["distribution"] == "bestiary-grpo" for p in found["plugins"]["plugins"])
    assert "steps=2" in found["argv"]


def test_samples_can_be_read(run_dir):
    (first_line, *_) = (run_dir / "samples" / "step_1.jsonl").read_text().splitlines()
    row = json.loads(first_line)
    assert re.fullmatch(r"\d+\+\d+=", row["prompt"])
    assert 0.0 <= row["reward"] <= 1.0
    assert {"response", "answer", "uid", "response_len"} <= set(row)
    shown = json.loads((run_dir / "samples" / "eval_2.json").read_text())["answers"]
    assert {answer["tag"] for answer in shown} == {"sample", "greedy"}


def test_trackers_chosen_together_give_one_local_run_each(run_dir, first):
    assert "failed" not in first.err
    (wandb,) = run_dir.rglob("*.wandb")
    (events,) = run_dir.rglob("events.out.tfevents.*")
    assert wandb.stat().st_size > 0
    assert events.stat().st_size > 0


def test_nothing_is_left_after_the_run(command, first):
    assert command.tokens
    assert command.leftovers() == []


def test_the_exported_model_is_one_of_transformers(run_dir):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(run_dir / "model")
    tokenizer = AutoTokenizer.from_pretrained(run_dir / "model")
    ids = tokenizer("12+34=", return_tensors="pt").input_ids
    with torch.no_grad():
        assert torch.isfinite(model(ids).logits).all()


def test_eval_gives_the_recorded_numbers_as_json(command, run_dir, first):
    recorded = json.loads((run_dir / "samples" / "eval_2.json").read_text())
    done = command("eval", run_dir, "--json")
    assert done.status == 0, done
    found = json.loads(done.out)
    assert found["metrics"] == pytest.approx(recorded["metrics"], rel=1e-6)
    assert found["checkpoint"].endswith("step_2")
    assert command.leftovers() == []


def test_resume_auto_goes_on_in_the_same_folder(command, run_dir, first):
    done = command("train", *WORDS, "steps=3", "resume=auto")
    assert done.status == 0, done
    assert "steps=2 -> 3" in done.err
    assert [(r["attempt"], r["step"]) for r in records(run_dir)] == [(1, 0), (1, 1), (1, 2), (2, 3)]
    result = json.loads((run_dir / "result.json").read_text())
    assert result["status"] == "finished"
    assert json.loads((run_dir / "manifest.json").read_text())["attempt"] == 2
    assert command.leftovers() == []


def test_a_run_that_is_there_is_never_overwritten(command, run_dir, first):
    before = (run_dir / "metrics.jsonl").read_bytes()
    done = command("train", *WORDS, "steps=2")
    assert done.status == 2
    assert "run_dir=run is there already" in done.err.splitlines()[0]
    assert (run_dir / "metrics.jsonl").read_bytes() == before
