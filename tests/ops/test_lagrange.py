import json
import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bestiary.ops.lagrange import combine, lagrange_step

CASES = json.loads((Path(__file__).parents[1] / "cases/oracles.json").read_text())["cases"]
ORACLES = {case["name"]: case for case in CASES}
close = torch.testing.assert_close
laws = settings(max_examples=40, deadline=None)  # shared machines stall now and then


@pytest.mark.parametrize("name", ["safe_rlhf_lambda_violated", "safe_rlhf_lambda_threshold"])
def test_lagrange_step_oracle(name):
    lam = lagrange_step(**ORACLES[name]["inputs"])
    wanted = ORACLES[name]["expected"]
    assert lam == pytest.approx(wanted["lam"], rel=1e-12)
    assert math.log(lam) == pytest.approx(wanted["log_lam"], rel=1e-12)


def test_safe_rlhf_kl_invariance_oracle():
    case = ORACLES["safe_rlhf_kl_invariance"]
    kl = torch.tensor(case["inputs"]["kl_token"], dtype=torch.float64)
    for lam, wanted in zip(
        case["inputs"]["lambdas"], case["expected"]["effective_kl_reward"], strict=True
    ):
        wanted = torch.tensor(wanted, dtype=torch.float64)
        close(combine(-kl, kl, lam), wanted, rtol=1e-12, atol=1e-12)


def test_step_is_capped():
    assert lagrange_step(4.9, 100.0, 0.0, 0.1, 5.0) == pytest.approx(5.0, rel=1e-15)


@laws
@given(
    lam=st.floats(1e-3, 5),
    cost=st.floats(-10, 10),
    threshold=st.floats(-10, 10),
    lr=st.floats(0, 1),
)
def test_multiplier_rises_with_violation_and_stays_positive(lam, cost, threshold, lr):
    new = lagrange_step(lam, cost, threshold, lr, 5.0)
    assert 0 < new <= 5 * (1 + 1e-12)
    if cost > threshold:
        assert new >= lam * (1 - 1e-12)
    else:
        assert new <= lam * (1 + 1e-12)


def test_combine_by_hand():
    reward, cost = torch.tensor([[3.0, 0.0]]), torch.tensor([[1.0, 0.0]])
    assert combine(reward, cost, 0).tolist() == [[3.0, 0.0]]
    assert combine(reward, cost, 1.0).tolist() == [[1.0, 0.0]]
    assert combine(reward, cost, torch.tensor(3.0)).tolist() == [[0.0, 0.0]]


def test_combine_is_at_least_float32():
    half = torch.ones(2, dtype=torch.bfloat16)
    assert combine(half, half, 1.0).dtype == torch.float32
    assert combine(half, half.double(), 1.0).dtype == torch.float64


@pytest.mark.parametrize(
    "arguments",
    [
        (0.0, 1, 0, 0.1, 5),
        (1.0, float("nan"), 0, 0.1, 5),
        (1, 1, 0, 0.1, 0),
        (1, math.inf, 0, 1, 5),
    ],
)
def test_numbers_that_would_poison_the_multiplier_are_refused(arguments):
    with pytest.raises(ValueError, match=r"positive|finite"):
        lagrange_step(*arguments)


@pytest.mark.parametrize("lam", [-1.0, float("nan")])
def test_combine_refuses_a_negative_multiplier(lam):
    with pytest.raises(ValueError, match="negative"):
        combine(torch.zeros(1), torch.zeros(1), lam)
