"""Which estimators are unbiased, by enumeration."""

import json
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
from exact import CHOICES, bandit, expected, objective, row, table, tree

PAGE = Path(__file__).parents[2] / "docs" / "components" / "estimators.md"
WORLDS = {"bandit": bandit(), "tree": tree()}


def close(a, b, tol=1e-12):
    assert torch.allclose(a, b, rtol=tol, atol=tol), (a, b)


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("reinforce", {}),
        ("rloo", {}),
        ("remax", {"clip": None}),
        ("gae", {"lam": 1.0, "whiten": False}),
        ("gae", {"lam": 0.0, "whiten": False}),
        ("gae", {"lam": 0.6, "whiten": False}),
    ],
)
def test_these_are_unbiased(world, name, options):
    close(expected(WORLDS[world], name, k=2, **options), objective(WORLDS[world]))


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("k", [2, 3])
def test_a_mean_that_holds_the_sample_itself_shrinks_by_one_kth(world, k):
    true = objective(WORLDS[world])
    close(expected(WORLDS[world], "dr_grpo", k=k), (k - 1) / k * true)


@pytest.mark.parametrize("world", WORLDS)
def test_the_deviation_makes_another_direction(world):
    true = objective(WORLDS[world]).flatten()
    found = expected(WORLDS[world], "group").flatten()
    cosine = float(found @ true / (found.norm() * true.norm()))
    assert 0.5 < cosine < 0.9999


@pytest.mark.parametrize("loss", ["clip", "cispo", "sapo", "decoupled", "gspo", "gmpo", "dppo"])
def test_on_policy_every_ratio_loss_has_the_gradient_of_reinforce(loss):
    world = tree()
    wanted = expected(world, "rloo", k=2)
    close(expected(world, "rloo", loss=loss, k=2), wanted, 1e-9)


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("name", ["reinforce", "rloo", "remax"])
def test_a_kl_to_go_is_the_gradient_of_the_regularised_objective(world, name):
    options = {"clip": None, "kl": "accumulated"} if name == "remax" else {}
    found = expected(WORLDS[world], name, k=2, beta=0.3, **options)
    close(found, objective(WORLDS[world], beta=0.3))


def test_a_one_step_kl_is_not():
    options = {"clip": None, "kl": "one_step"}
    close(
        expected(bandit(), "remax", k=2, beta=0.3, **options), objective(bandit(), beta=0.3)
    )  # one token: the same
    found = expected(tree(), "remax", k=2, beta=0.3, **options)
    assert not torch.allclose(found, objective(tree(), beta=0.3), rtol=1e-3)


def test_importance_weights_correct_for_another_behaviour():
    world = tree()
    behaviour = world.logits + torch.tensor([[0.3, -0.2, 0.1], [0.4, 0.0, 0.0], [0.0, 0.3, 0.0]])
    true = objective(world)
    found = expected(
        world, "reinforce", loss="decoupled", k=1, behaviour=behaviour, mode="seq-mean-token-sum"
    )
    # Token ratios correct one token, not the state that it was drawn in: nearer, not equal.
    plain = expected(world, "reinforce", k=1, behaviour=behaviour)
    assert (found - true).norm() < (plain - true).norm()


def test_the_worked_bandit_of_the_cases():
    cases = json.loads((Path(__file__).parents[1] / "cases" / "oracles.json").read_text())["cases"]
    given = next(c for c in cases if c["name"] == "enumerated_gradient_bandit3")
    assert given["expected"]  # the numbers themselves are checked in tests/ops


@pytest.mark.parametrize(("estimator", "options", "beta"), CHOICES)
def test_the_page_says_what_is_true(estimator, options, beta):
    assert table() in PAGE.read_text()
    factor, cosine = row(estimator, options, beta)
    assert factor > 0
    assert cosine > 0.5
