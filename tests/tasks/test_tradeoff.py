"""The constrained task: its optimum, and pairs of the same words."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bestiary.plugins.manager import load_plugins
from bestiary.protocols import Sample
from bestiary_tasks.options import PreferencesOptions, ShareOptions, TradeoffOptions
from bestiary_tasks.tradeoff import (
    Preferences,
    Tradeoff,
    best_multiplier,
    multipliers,
    optimum,
    share_of_a,
)

REGISTRY = load_plugins().registry


def score(name, *texts, length=10, extra=None):
    component = REGISTRY.get("reward", name)
    reward = component.build(component.options_class()(length=length))
    return reward([Sample("u", "0001:", t, "", len(t), False, extra or {}) for t in texts])


def test_reward_and_cost_by_hand():
    texts = ("a" * 10, "b" * 10, "aaabbbbbbb", "", "a" * 30, "aab")
    assert score("tradeoff_reward", *texts) == pytest.approx([1, 0, 0.3, 0, 1, 0.2])
    assert score("tradeoff_cost", *texts) == pytest.approx([1, 0, 0.09, 0, 1, 0.04])


def test_the_length_of_the_problem_wins_over_that_of_the_reward():
    (problem, *_) = Tradeoff(TradeoffOptions(length=4)).problems("train")
    assert score("tradeoff_reward", "aabb", extra=problem.extra) == [0.5]
    assert score("tradeoff_cost", "aabb", extra=problem.extra) == [0.25]


@given(threshold=st.floats(0.0, 1.2), length=st.integers(1, 12))
def test_the_optimum_is_that_of_all_mixtures_of_two_words(threshold, length):
    """A linear objective under one constraint has an optimum that mixes two words at most."""
    x = np.arange(length + 1) / length
    best = max(v for v in x if v * v <= threshold + 1e-12)
    for low, high in itertools.combinations(x, 2):
        if low * low <= threshold < high * high:
            weight = (threshold - low * low) / (high * high - low * low)
            best = max(best, low + weight * (high - low))
    assert optimum(threshold, length) == pytest.approx(best, abs=1e-9)
    assert optimum(threshold, length) <= max(np.sqrt(threshold), 0) + 1e-9


@given(threshold=st.floats(0.01, 1.0), length=st.integers(1, 12))
def test_the_optimum_maximises_the_lagrangian_at_its_multipliers(threshold, length):
    x = np.arange(length + 1) / length
    for lam in multipliers(threshold, length):
        best = (x - lam * x * x).max()
        assert optimum(threshold, length) - lam * threshold == pytest.approx(best, abs=1e-9)


def test_the_numbers_of_the_default_task():
    assert optimum(0.36) == pytest.approx(0.6)
    assert best_multiplier(0.36) == pytest.approx(1 / 1.2)
    low, high = multipliers(0.36)
    assert (low, high) == pytest.approx((10 / 13, 10 / 11))
    assert low < best_multiplier(0.36) < high
    assert optimum(1.0) == optimum(7.0) == 1.0
    assert best_multiplier(1.0) == 0.0
    assert multipliers(2.0) == (0.0, 0.0)


@pytest.mark.parametrize("function", [optimum, best_multiplier, multipliers])
def test_a_threshold_that_nothing_meets_is_refused(function):
    with pytest.raises(ValueError, match=r"threshold=-0\.1"):
        function(-0.1)


def test_prompts_and_texts_of_the_task():
    task = Tradeoff(TradeoffOptions(size=40, eval_size=8, start=0.3))
    train, held = task.problems("train"), task.problems("eval")
    assert (len(train), len(held)) == (40, 8)
    assert not {p.prompt for p in train} & {p.prompt for p in held}
    assert all(len(p.target) == 10 and set(p.target) <= {"a", "b"} for p in train)
    assert np.mean([share_of_a(p.target, 10) for p in train]) == pytest.approx(0.3, abs=0.08)
    assert task.max_tokens == 11
    other = Tradeoff(TradeoffOptions(size=40, eval_size=8, seed=1)).problems("train")
    assert [p.target for p in other] != [p.target for p in train]


@pytest.mark.parametrize("by", ["reward", "cost"])
def test_pairs_are_ordered_and_labelled(by):
    task = Preferences(PreferencesOptions(by=by, size=200, eval_size=8, length=5))
    problems = task.problems("train")
    for problem in problems:
        chosen, rejected = (share_of_a(t, 5) for t in (problem.target, problem.rejected))
        assert chosen > rejected if by == "reward" else chosen < rejected
        assert len(problem.target) == len(problem.rejected) == 5
        assert problem.extra["chosen_safe"] == (chosen <= 0.6 + 1e-12)
        assert problem.extra["rejected_safe"] == (rejected <= 0.6 + 1e-12)
    seen = {(p.extra["chosen_safe"], p.extra["rejected_safe"]) for p in problems}
    unsafe_first = (False, True) if by == "reward" else (True, False)
    assert seen == {(True, True), (False, False), unsafe_first}


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        (ShareOptions, {"length": 0}),
        (TradeoffOptions, {"size": 0}),
        (TradeoffOptions, {"size": 9999}),
        (TradeoffOptions, {"start": 1.5}),
        (PreferencesOptions, {"threshold": 1.5}),
        (PreferencesOptions, {"by": "luck"}),
        (PreferencesOptions, {"length": 0}),
    ],
)
def test_options_without_meaning_are_refused(options, wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        options(**wrong)
