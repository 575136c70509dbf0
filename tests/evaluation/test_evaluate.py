"""Held-out accuracy against a loop over prompts and samples, under streams of its own."""

import json

import numpy as np
import pytest
from role_parts import Bench, bad, prompts, response, reward_of
from run_help import custom, train_here

from bestiary.engines.local.streams import sample_key
from bestiary.evaluation.evaluate import eval_samplings, evaluate
from bestiary.protocols import Sampling
from bestiary.runtime.components import Components

BASE = Sampling(n=8, temperature=0.7, top_p=0.9, top_k=5, min_p=0.1, max_tokens=6, stop=("\n",))


@pytest.fixture(scope="module")
def components(lab):
    return Components(lab)


def run(components, *, samples=3, greedy=True, world=2, n=7, show=8, **options):
    bench = Bench(world, components, **options)
    actor = bench.actor.for_purpose("eval")
    samplings = eval_samplings(BASE, samples, greedy=greedy)
    return evaluate(actor, bench.reward, prompts(n), samplings, show=show)


def by_hand(n, samples, tag, invalid=()):
    """(rewards of valid samples, lengths) in a loop, from what the fake ranks draw."""
    rewards, lengths = [], []
    for p in range(n):
        for j in range(samples):
            key = int(sample_key(7, f"eval/{tag}", f"p{p}", 0, j, 0))
            ids = response(100 + p, key)
            lengths.append(len(ids))
            if not bad(ids, invalid):
                rewards.append(reward_of(ids))
    return np.array(rewards), np.array(lengths)


@pytest.mark.parametrize("world", [1, 3])
@pytest.mark.parametrize("invalid", [(), range(0, 1000, 3)])
def test_metrics_equal_those_of_a_loop(components, world, invalid):
    found = run(components, world=world, invalid=invalid).metrics
    sampled, lengths = by_hand(7, 3, "sample", invalid)
    greedy, _ = by_hand(7, 1, "greedy", invalid)
    assert found["eval/exact_match"] == pytest.approx((sampled >= 1).mean())
    assert found["eval/greedy"] == pytest.approx((greedy >= 1).mean())
    assert found["eval/reward"] == pytest.approx(sampled.mean())
    assert found["eval/response_len"] == pytest.approx(lengths.mean())
    assert found["eval/truncated"] == 0.0


@pytest.mark.parametrize("invalid", [(), range(0, 1000, 3)])
def test_pass_at_k_by_a_loop(components, invalid):
    found = run(components, invalid=invalid).metrics
    passed = []
    for p in range(7):
        rewards = []
        for j in range(3):
            ids = response(100 + p, int(sample_key(7, "eval/sample", f"p{p}", 0, j, 0)))
            if not bad(ids, invalid):
                rewards.append(reward_of(ids))
        if rewards:
            passed.append(max(rewards) >= 1)
    assert found["eval/pass_at_k"] == pytest.approx(np.mean(passed))


def test_nothing_valid_is_not_a_number_rather_than_zero(components):
    found = run(components, invalid=range(1000)).metrics
    assert np.isnan(found["eval/exact_match"])
    assert np.isnan(found["eval/reward"])


def test_either_kind_of_sampling_may_be_left_out(components):
    assert "eval/greedy" not in run(components, greedy=False).metrics
    found = run(components, samples=0).metrics
    assert "eval/exact_match" not in found
    assert found["eval/greedy"] == pytest.approx((by_hand(7, 1, "greedy")[0] >= 1).mean())


def test_samplings_are_plain_whatever_training_does():
    plain, greedy = eval_samplings(BASE, 4, greedy=True)
    for s in (plain, greedy):
        assert (s.temperature, s.top_p, s.top_k, s.min_p) == (1.0, 1.0, 0, 0.0)
        assert (s.max_tokens, s.stop, s.trainable) == (6, ("\n",), False)
    assert (plain.n, plain.greedy, greedy.n, greedy.greedy) == (4, False, 1, True)


def test_answers_show_the_first_sample_and_the_greedy_one_of_some_problems(components):
    answers = run(components, show=2).answers
    assert [(a["uid"], a["tag"]) for a in answers] == [
        ("p0", "sample"), ("p0", "greedy"), ("p1", "sample"), ("p1", "greedy"),
    ]  # fmt: skip
    key = int(sample_key(7, "eval/greedy", "p1", 0, 0, 0))
    assert answers[3]["response"] == " ".join(map(str, response(101, key)))
    json.dumps(answers)


def test_no_stream_of_evaluation_occurs_in_training(components):
    bench = Bench(1, components)
    samplings = eval_samplings(BASE, 8, greedy=True)
    kinds = [Sampling(n=8), Sampling(tag="greedy", greedy=True, trainable=False)]
    seen = []
    for actor, drawn in ((bench.actor, kinds), (bench.actor.for_purpose("eval"), samplings)):
        batch = actor.generate(prompts(5), drawn)
        _, keys = actor._rows(prompts(5), tuple(drawn))
        assert len(batch) == keys.size
        seen.append(set(keys.ravel().tolist()))
    assert not seen[0] & seen[1]


def test_each_evaluation_draws_the_same_samples_for_the_same_problems(lab, tmp_path):
    words = ["algorithm=grpo", "steps=2", "eval.every=1", "train_engine.lr=0", "eval.samples=4"]
    train_here([*words, *custom("letters")], tmp_path / "run", lab)
    first, second, third = (
        json.loads((tmp_path / "run" / "samples" / f"eval_{step}.json").read_text())
        for step in (0, 1, 2)
    )
    assert first["answers"] == second["answers"] == third["answers"]
    assert first["metrics"] == second["metrics"] == third["metrics"]
    assert len({a["response"] for a in first["answers"]}) > 4
