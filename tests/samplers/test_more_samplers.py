"""Prioritised, over-sampling and best-of-n."""

import json
import math
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))
from test_samplers import groups, source

from bestiary.batch import Ragged, token_column
from bestiary.errors import ConfigError, NumericalError
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
    counts = Counter(sampler.draw(9)["uid"].tolist())
    assert len(counts) == 6
    assert set(counts.values()) == {1, 2}


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
    with pytest.raises(ConfigError, match=r"returns, values.*critic"):
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


def test_the_uniform_share_is_a_floor_under_every_prompt():
    sampler = Prioritised(PrioritisedOptions(alpha=1.0, epsilon=1e-9, uniform=0.4), source(4))
    sampler.observe(finished(["u0", "u1", "u2", "u3"], [1.0, 3.0, 0.0, 0.0]))
    assert sampler.chances() == pytest.approx([0.25, 0.55, 0.1, 0.1], abs=1e-6)
    even = Prioritised(PrioritisedOptions(uniform=1.0), source(4))
    even.observe(finished(["u0"], [100.0]))
    assert even.chances() == pytest.approx([0.25] * 4)
    assert even.draw(3)["sample_weight"].tolist() == [1.0] * 3


@settings(max_examples=60, deadline=None)
@given(
    errors=st.lists(st.floats(0.0, 50.0), min_size=1, max_size=12),
    alpha=st.sampled_from([0.0, 0.6, 1.0, 2.0]),
    uniform=st.sampled_from([0.0, 0.3, 1.0]),
    n=st.integers(1, 25),
)
def test_a_draw_repeats_a_prompt_only_as_often_as_its_chance_demands(errors, alpha, uniform, n):
    sampler = Prioritised(PrioritisedOptions(alpha=alpha, uniform=uniform), source(len(errors)))
    uids = [f"u{i}" for i in range(len(errors))]
    sampler.observe(finished(uids, errors))
    expected = n * sampler.chances()
    assert expected.sum() == pytest.approx(n)
    drawn = sampler.draw(n)
    assert len(set(drawn["group_uid"])) == n
    assert drawn["sample_weight"].max() == 1.0
    assert (drawn["sample_weight"] > 0).all()
    counts = Counter(drawn["uid"].tolist())
    for uid, mean in zip(uids, expected, strict=True):
        assert mean - 1 - 1e-9 < counts[uid] < mean + 1 + 1e-9
    repeated = n - len(counts)
    assert sampler.metrics()["sampler/repeated"] == repeated / n


def test_weighted_draws_are_unbiased_at_beta_1():
    """Σ wᵢ·xᵢ over draws of n has the mean of uniform draws, before the division by the maximum."""
    sampler = Prioritised(PrioritisedOptions(alpha=1.0, beta=1.0, epsilon=0.1), source(5))
    sampler.observe(finished([f"u{i}" for i in range(5)], [0.0, 1.0, 2.0, 3.0, 9.0]))
    x = {f"u{i}": value for i, value in enumerate([4.0, -1.0, 7.0, 2.0, 3.0])}
    chances = dict(zip(x, sampler.chances(), strict=True))
    means = []
    for _ in range(3000):
        drawn = sampler.draw(3)
        top = max(1 / (5 * chances[uid]) for uid in drawn["uid"])
        terms = drawn["sample_weight"] * top * np.array([x[uid] for uid in drawn["uid"]])
        means.append(terms.mean())
    assert np.mean(means) == pytest.approx(np.mean(list(x.values())), abs=0.25)


def test_beta_rises_with_the_steps_and_not_with_the_draws():
    sampler = Prioritised(PrioritisedOptions(beta=0.4, beta_steps=4), source(3))
    seen = [sampler.beta]
    for _ in range(5):
        sampler.draw(2)
        sampler.observe(finished(["u0"], [1.0]))
        seen.append(sampler.beta)
    assert seen == pytest.approx([0.4, 0.55, 0.7, 0.85, 1.0, 1.0])
    assert Prioritised(PrioritisedOptions(beta=0.0), source(3)).beta == 0.0


def test_a_priority_is_the_mean_over_the_counted_rows_of_all_hand_outs_of_a_prompt():
    sampler = Prioritised(PrioritisedOptions(), source(3))
    batch = groups([0, 0], [0, 0], [0, 0], uids=["u0", "u0", "u2"], valid={(0, 0): False})
    wanted = {(0, 0): 100.0, (0, 1): 1.0, (1, 0): 2.0, (1, 1): 6.0, (2, 0): 0.5, (2, 1): 1.5}
    order = [(g, i) for i in range(2) for g in range(3)]
    returns = Ragged.from_rows([[wanted[key]] for key in order])
    zeros = Ragged.from_rows([[0.0] for _ in order])
    sampler.observe(batch.join(token_column(batch, returns=returns, values=zeros)))
    assert sampler.priority[[0, 2]].tolist() == [3.0, 1.0]
    assert np.isnan(sampler.priority[1])


def test_rew04_a_prompt_whose_rewards_are_all_missing_gets_the_lowest_priority():
    sampler = Prioritised(PrioritisedOptions(by="reward_variance"), source(3))
    sampler.observe(groups([0.0, 0.0], [0.0, 1.0], valid={(0, 0): False, (0, 1): False}))
    assert sampler.priority[:2].tolist() == [0.0, 0.25]
    chances = sampler.chances()
    assert chances[0] < chances[1] == chances[2]


def test_a_priority_that_is_not_finite_is_an_error_with_its_prompt():
    sampler = Prioritised(PrioritisedOptions(), source(2))
    with pytest.raises(NumericalError, match="the priority of 'u1' is nan"):
        sampler.observe(finished(["u0", "u1"], [1.0, float("nan")]))


def test_prompts_that_the_source_does_not_have_are_passed_over():
    sampler = Prioritised(PrioritisedOptions(), source(2))
    sampler.observe(finished(["judge", "u1"], [9.0, 1.0]))
    assert sampler.metrics()["sampler/seen"] == 1.0


# --------------------------------------------------------------------------- over-sampling


def test_the_groups_that_differ_most_are_kept():
    sampler = Oversample(OversampleOptions(factor=2.0), source(10))
    assert len(sampler.draw(2)) == 4
    batch = groups([0.0, 0.0], [0.0, 1.0], [0.5, 0.5], [0.0, 0.2])
    kept, more = sampler.accept(batch)
    assert sorted(set(kept["uid"])) == ["u1", "u3"]
    assert more == 0
    sampler.observe(kept)
    assert sampler.metrics() == {
        "sampler/judged": 4.0,
        "sampler/dropped": 2.0,
        "sampler/dropped_tokens": 2 * (3 + 4),
        "sampler/reward": pytest.approx(2.2 / 8),
    }


def test_invalid_groups_go_first():
    sampler = Oversample(OversampleOptions(factor=2.0), source(10))
    sampler.draw(1)
    batch = groups([1.0, 2.0], [1.0, 1.0], valid={(0, 0): False, (0, 1): False})
    assert set(sampler.accept(batch)[0]["uid"]) == {"u1"}


@settings(max_examples=40, deadline=None)
@given(
    n=st.integers(1, 5),
    factor=st.sampled_from([1.0, 1.5, 3.0]),
    rewards=st.lists(
        st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=2, max_size=2), min_size=15
    ),
)
def test_every_drawn_group_is_kept_or_counted_as_dropped(n, factor, rewards):
    sampler = Oversample(OversampleOptions(factor=factor), source(10))
    drawn = len(sampler.draw(n))
    assert drawn == math.ceil(n * factor)
    batch = groups(*rewards[:drawn])
    kept, more = sampler.accept(batch)
    assert more == 0
    spreads = np.array([np.std(r) for r in rewards[:drawn]])
    chosen = sorted(int(uid[1:]) for uid in set(kept["uid"]))
    assert len(chosen) == n
    assert sorted(spreads[chosen]) == pytest.approx(sorted(spreads)[-n:])
    assert len(kept) == 2 * n
    metrics = sampler.metrics()
    assert metrics["sampler/judged"] == drawn
    assert metrics["sampler/dropped"] == drawn - n
    assert metrics["sampler/dropped_tokens"] == (drawn - n) * (3 + 4)


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


def test_equal_rewards_go_by_the_order_of_the_rows_and_counts_are_metrics():
    sampler = BestOfN(BestOfNOptions(best=2), source())
    batch = groups([1.0, 1.0, 1.0, 0.0], [0.0, 2.0, 2.0, 2.0])
    kept, more = sampler.accept(batch)
    assert (len(kept), more) == (8, 0)
    on = kept["trainable"].astype(bool)
    index = {uid: np.flatnonzero(kept["uid"] == uid) for uid in ("u0", "u1")}
    assert on[index["u0"]].tolist() == [True, True, False, False]
    assert on[index["u1"]].tolist() == [False, True, True, False]
    other = BestOfN(BestOfNOptions(best=2), source())
    other.load_state_dict(json.loads(json.dumps(sampler.state_dict())))
    for one in (sampler, other):
        one.observe(kept)
        assert one.metrics() == {
            "sampler/judged": 8.0,
            "sampler/chosen": 4.0,
            "sampler/reward": 9.0 / 8,
        }


def test_rew04_a_group_without_any_reward_stays_as_it_is():
    batch = groups(
        [0.0, 0.0, 0.0],
        [1.0, 2.0, 3.0],
        valid={(0, 0): False, (0, 1): False},
        trainable={(0, 2): False},
    )
    kept = BestOfN(BestOfNOptions(), source()).accept(batch)[0]
    on = kept["trainable"].astype(bool)
    assert on[kept["uid"] == "u0"].tolist() == [True, True, False]
    assert on[kept["uid"] == "u1"].tolist() == [False, False, True]


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        (PrioritisedOptions, {"uniform": 1.5}),
        (PrioritisedOptions, {"by": "luck"}),
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
