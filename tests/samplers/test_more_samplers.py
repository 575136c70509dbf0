"""Prioritised, over-sampling and best-of-n."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from test_samplers import groups, source

from bestiary.batch import Ragged, token_column
from bestiary_samplers.best_of_n import BestOfN
from bestiary_samplers.options import BestOfNOptions, OversampleOptions, PrioritisedOptions
from bestiary_samplers.oversample import Oversample
from bestiary_samplers.prioritised import Prioritised


def finished(uids, errors):
    """A finished batch of one row for each uid whose values are off by ``errors``."""
    batch = groups(*[[0.0]] * len(uids), uids=uids)
    returns = Ragged.from_rows([[e, e] for e in errors])
    values = Ragged.from_rows([[0.0, 0.0] for _ in errors])
    return batch.join(token_column(batch, returns=returns, values=values))


# --------------------------------------------------------------------------- prioritised


def test_chances_follow_the_priorities_by_hand():
    sampler = Prioritised(PrioritisedOptions(alpha=0.5, epsilon=1.0), source(4))
    assert sampler.chances().tolist() == [0.25] * 4
    sampler.observe(finished(["u0", "u1"], [3.0, -8.0]))
    # u2 and u3 were never seen: the largest so far
    weight = np.array([2.0, 3.0, 3.0, 3.0])
    assert sampler.chances() == pytest.approx(weight / weight.sum())


def test_importance_weights_by_hand():
    options = PrioritisedOptions(alpha=1.0, beta=0.5, beta_steps=10, epsilon=1e-9)
    sampler = Prioritised(options, source(2))
    sampler.observe(finished(["u0", "u1"], [1.0, 3.0]))
    drawn = sampler.draw(2)
    beta = 0.5 + 0.5 * 0.1
    weights = {"u0": (2 * 0.25) ** -beta, "u1": (2 * 0.75) ** -beta}
    for uid, weight in zip(drawn["uid"], drawn["sample_weight"], strict=True):
        assert weight == pytest.approx(weights[uid] / max(weights.values()), rel=1e-6)


def test_prompts_are_drawn_as_often_as_their_priority_says():
    sampler = Prioritised(PrioritisedOptions(alpha=1.0, epsilon=1e-9, beta=0.0), source(3))
    sampler.observe(finished(["u0", "u1", "u2"], [1.0, 2.0, 5.0]))
    drawn = [sampler.draw(1)["uid"][0] for _ in range(4000)]
    shares = [drawn.count(uid) / 4000 for uid in ("u0", "u1", "u2")]
    assert shares == pytest.approx([0.125, 0.25, 0.625], abs=0.03)


def test_a_draw_has_each_prompt_once_while_there_are_enough():
    sampler = Prioritised(PrioritisedOptions(), source(6))
    assert sorted(sampler.draw(6)["uid"]) == [f"u{i}" for i in range(6)]
    assert sorted(sampler.draw(9)["uid"][:6]) == [f"u{i}" for i in range(6)]


@pytest.mark.parametrize("by", ["advantage", "kl", "reward_variance"])
def test_other_priorities(by):
    sampler = Prioritised(PrioritisedOptions(by=by), source(2))
    batch = groups([0.0, 2.0], [1.0, 1.0])
    order = {u: i for i, u in enumerate(batch["uid"].tolist())}
    assert order
    size = np.where(batch["uid"] == "u0", 2.0, 0.5)
    one = Ragged.from_rows([[s] for s in size])
    zero = Ragged.from_rows([[0.0] for _ in size])
    columns = {
        "advantage": {"advantages": one},
        "kl": {"old_logprobs": one, "rollout_logprobs": zero},
        "reward_variance": {},
    }[by]
    sampler.observe(batch.join(token_column(batch, **columns)) if columns else batch)
    wanted = [1.0, 0.0] if by == "reward_variance" else [2.0, 0.5]
    assert sampler.priority.tolist() == wanted


def test_a_priority_without_its_columns_says_what_is_missing():
    sampler = Prioritised(PrioritisedOptions(), source(2))
    with pytest.raises(ValueError, match=r"returns.*sampler\.by"):
        sampler.observe(groups([0.0], [1.0]))


def test_a_resumed_sampler_draws_the_same():
    one = Prioritised(PrioritisedOptions(), source(8))
    one.draw(3)
    one.observe(finished(["u1", "u5"], [2.0, 0.1]))
    state = json.loads(json.dumps(one.state_dict()))
    other = Prioritised(PrioritisedOptions(), source(8))
    other.load_state_dict(state)
    for _ in range(3):
        a, b = one.draw(4), other.draw(4)
        assert a["uid"].tolist() == b["uid"].tolist()
        assert a["sample_weight"].tolist() == b["sample_weight"].tolist()


# --------------------------------------------------------------------------- over-sampling


def test_the_groups_that_differ_most_are_kept():
    sampler = Oversample(OversampleOptions(factor=2.0), source(10))
    assert len(sampler.draw(2)) == 4
    batch = groups([0.0, 0.0], [0.0, 1.0], [0.5, 0.5], [0.0, 0.2])
    kept, more = sampler.accept(batch)
    assert sorted(set(kept["uid"])) == ["u1", "u3"]
    assert more == 0
    assert sampler.metrics() == {"sampler/judged": 4.0, "sampler/dropped": 2.0}


def test_invalid_groups_go_first():
    sampler = Oversample(OversampleOptions(factor=2.0), source(10))
    sampler.draw(1)
    batch = groups([1.0, 2.0], [1.0, 1.0], valid={(0, 0): False, (0, 1): False})
    assert set(sampler.accept(batch)[0]["uid"]) == {"u1"}


# --------------------------------------------------------------------------- best of n


def trainable(batch):
    return sorted(batch["reward"][batch["trainable"].astype(bool)].tolist())


def test_only_the_best_and_the_worst_stay_trainable():
    batch = groups([1.0, 5.0, 3.0, 2.0])
    assert trainable(BestOfN(BestOfNOptions(), source()).accept(batch)[0]) == [5.0]
    both = BestOfN(BestOfNOptions(best=1, worst=1), source()).accept(batch)[0]
    assert trainable(both) == [1.0, 5.0]
    every = BestOfN(BestOfNOptions(best=9), source()).accept(batch)[0]
    assert trainable(every) == [1.0, 2.0, 3.0, 5.0]


def test_invalid_and_baseline_rows_are_never_chosen():
    batch = groups([9.0, 5.0, 3.0, 0.0], valid={(0, 0): False}, trainable={(0, 3): False})
    kept = BestOfN(BestOfNOptions(best=1, worst=1), source()).accept(batch)[0]
    assert trainable(kept) == [3.0, 5.0]


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        (PrioritisedOptions, {"alpha": -1.0}),
        (PrioritisedOptions, {"beta": 1.5}),
        (PrioritisedOptions, {"beta_steps": 0}),
        (OversampleOptions, {"factor": 0.5}),
        (BestOfNOptions, {"best": 0}),
    ],
)
def test_options_without_meaning_are_refused(options, wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        options(**wrong)
