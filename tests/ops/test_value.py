import json
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bestiary.ops.value import clipped_value_loss

CASES = json.loads((Path(__file__).parents[1] / "cases/oracles.json").read_text())["cases"]
ORACLES = {case["name"]: case for case in CASES}
NAN = float("nan")
close = torch.testing.assert_close
laws = settings(max_examples=40, deadline=None)  # shared machines stall now and then


def f64(values):
    return torch.tensor(values, dtype=torch.float64)


def test_value_loss_clip_oracle():
    given_, wanted = ORACLES["value_loss_clip"]["inputs"], ORACLES["value_loss_clip"]["expected"]
    inputs = (f64([given_[name]]) for name in ("values", "old_values", "returns"))
    loss = clipped_value_loss(*inputs, clip=given_["eps"]).mean()
    close(loss.item(), wanted["loss_half"], rtol=1e-12, atol=1e-12)
    close(2 * loss.item(), wanted["loss_full"], rtol=1e-12, atol=1e-12)


def test_without_clip_it_is_half_the_squared_error():
    got = clipped_value_loss(f64([[3.0]]), f64([[0.0]]), f64([[1.0]]), clip=None)
    assert got.tolist() == [[2.0]]


def test_value_that_left_the_band_towards_the_return_gets_no_gradient():
    values = f64([[0.9, 0.9]]).requires_grad_()
    clipped_value_loss(values, f64([[0.5, 1.5]]), f64([[1.0, 1.0]])).sum().backward()
    assert values.grad[0, 0].item() == 0.0
    assert values.grad[0, 1].item() == 0.0


def test_masked_values_never_leak():
    values = f64([[0.5, NAN]]).requires_grad_()
    other = f64([[0.25, NAN]])
    mask = torch.tensor([[True, False]])
    loss = clipped_value_loss(values, other, other, mask)
    loss.sum().backward()
    assert loss[0, 1].item() == 0.0
    assert values.grad.tolist() == [[0.25, 0.0]]


@laws
@given(seed=st.integers(0, 10_000))
def test_clipped_loss_is_never_below_the_plain_one(seed):
    g = torch.Generator().manual_seed(seed)
    values, old, returns = torch.randn(3, 2, 4, generator=g, dtype=torch.float64)
    plain = clipped_value_loss(values, old, returns, clip=None)
    assert (clipped_value_loss(values, old, returns) >= plain).all()
    values.requires_grad_()
    assert torch.autograd.gradcheck(lambda x: clipped_value_loss(x, old, returns), values)


def test_targets_get_no_gradient():
    x = f64([[1.0]]).requires_grad_()
    targets = f64([[2.0]]).requires_grad_()
    clipped_value_loss(x, targets, targets).sum().backward()
    assert targets.grad is None


def test_at_least_float32():
    half = torch.zeros(1, 2, dtype=torch.float16)
    assert clipped_value_loss(half, half, half).dtype == torch.float32


@pytest.mark.parametrize("clip", [0.0, -1.0, NAN])
def test_clip_must_be_positive(clip):
    x = torch.zeros(1, 1)
    with pytest.raises(ValueError, match="clip"):
        clipped_value_loss(x, x, x, clip=clip)
