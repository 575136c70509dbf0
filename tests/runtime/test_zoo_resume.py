"""Algorithms and samplers with state go on, bit for bit, where a checkpoint left them."""

import pytest
from run_help import custom, train_here, without_times

from bestiary.tracking.jsonl import read_metrics

CASES = {
    "ppo": [
        "algorithm=ppo", "algorithm.minibatches=2", "algorithm.kl.coef=0.1",
        "algorithm.kl.target=0.05", "algorithm.kl.horizon=10", "algorithm.critic_lr=1e-2",
        "sampler=prioritised", "advantage.truncated=bootstrap",
    ],
    "shared trunk": [
        "algorithm=ppo", "algorithm.minibatches=2", "algorithm.shared_trunk=true",
        "correction=tis",
    ],
    "safe_rlhf": [
        "algorithm=safe_rlhf", "algorithm.minibatches=2", "algorithm.threshold=0.1",
        "algorithm.ptx_coef=0.1", "cost=length", "cost.scale=0.1",
    ],
    "remax": [
        "algorithm=remax", "algorithm.kl.coef=0.1", "algorithm.kl_decay=linear",
        "algorithm.kl_steps=5", "sampler=oversample",
    ],
    "lora": ["algorithm=grpo", "train_engine.lora.rank=4", "algorithm.kl_coef=0.1"],
    "otb": ["algorithm=otb", "sampler=best_of_n", "sampler.best=2", "sampler.worst=1"],
}  # fmt: skip


def numbers(run_dir):
    return {int(r["step"]): without_times(r) for r in read_metrics(run_dir / "metrics.jsonl")}


@pytest.mark.parametrize("name", CASES)
def test_a_resumed_run_is_the_run_that_was_not_stopped(lab, tmp_path, name):
    words = [
        *CASES[name], *custom("letters"), "deterministic=true", "eval.every=2",
        "checkpoint.every=2", "checkpoint.keep=9",
    ]  # fmt: skip
    train_here([*words, "steps=4"], tmp_path / "whole", lab)
    train_here([*words, "steps=2"], tmp_path / "parts", lab)
    train_here([*words, "steps=4", "resume=auto"], tmp_path / "parts", lab)
    ours, theirs = numbers(tmp_path / "parts"), numbers(tmp_path / "whole")
    assert list(theirs) == [0, 1, 2, 3, 4]
    for step in (3, 4):
        assert ours[step] == theirs[step], f"step {step}"
    assert theirs[4]["grad_norm"] > 0
    if name == "ppo":
        assert theirs[4]["kl/coef"] != theirs[1]["kl/coef"]
    if name == "safe_rlhf":
        assert theirs[4]["lagrange/lambda"] != 1.0
