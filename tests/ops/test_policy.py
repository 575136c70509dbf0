import json
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bestiary.ops.policy import (
    cispo,
    clipped_surrogate,
    gmpo,
    reinforce,
    sapo,
    sequence_surrogate,
)
from bestiary.ops.weights import loss_weights, weighted_sum

CASES = json.loads((Path(__file__).parents[1] / "cases/oracles.json").read_text())["cases"]
ORACLES = {case["name"]: case for case in CASES}
NAN = float("nan")
close = torch.testing.assert_close
laws = settings(max_examples=40, deadline=None)  # shared machines stall now and then

LOSSES = {
    "clipped": clipped_surrogate,
    "dual_clip": lambda *a, **k: clipped_surrogate(*a, dual_clip=3.0, **k),
    "gspo": sequence_surrogate,
    "gspo_wide": lambda *a, **k: sequence_surrogate(*a, clip_low=0.2, clip_high=0.2, **k),
    "cispo": cispo,
    "sapo": sapo,
    "gmpo": gmpo,
    "reinforce": lambda now, old, adv, mask: reinforce(now, adv, mask),
}


def f64(values):
    return torch.tensor(values, dtype=torch.float64)


def random_case(seed, rows=3, width=5):
    g = torch.Generator().manual_seed(seed)
    now = -torch.rand(rows, width, generator=g, dtype=torch.float64) * 2
    old = now + 0.4 * torch.randn(rows, width, generator=g, dtype=torch.float64)
    advantages = torch.randn(rows, width, generator=g, dtype=torch.float64)
    mask = torch.arange(width) < torch.randint(0, width + 1, (rows, 1), generator=g)
    return now, old, advantages, mask


def oracle_inputs(name):
    given_ = ORACLES[name]["inputs"]
    now = f64(given_["new_logp"]).requires_grad_()
    mask = f64(given_["mask"]).bool()
    return now, f64(given_["old_logp"]), f64(given_["advantages"]), mask, given_


def test_cispo_loss_oracle():
    now, old, advantages, mask, given_ = oracle_inputs("cispo_loss")
    losses = cispo(
        now, old, advantages, mask, clip_low=given_["eps_low"], clip_high=given_["eps_high"]
    )
    loss = weighted_sum(losses, loss_weights(mask))
    loss.backward()
    wanted = ORACLES["cispo_loss"]["expected"]
    close(loss.item(), wanted["loss"], rtol=1e-12, atol=1e-12)
    close(now.grad, f64(wanted["grad"]), rtol=1e-12, atol=1e-12)


def test_gspo_loss_unclipped_oracle():
    now, old, advantages, mask, given_ = oracle_inputs("gspo_loss_unclipped")
    losses = sequence_surrogate(
        now, old, advantages, mask, clip_low=given_["eps_low"], clip_high=given_["eps_high"]
    )
    loss = weighted_sum(losses, loss_weights(mask, mode="seq-mean-token-mean"))
    loss.backward()
    wanted = ORACLES["gspo_loss_unclipped"]["expected"]
    close(loss.item(), wanted["loss"], rtol=1e-12, atol=1e-12)
    for i, slope in enumerate(wanted["grad_per_unmasked_token"]):
        tokens = mask[i].sum()
        close(now.grad[i][mask[i]], torch.full((tokens,), slope).double(), rtol=1e-6, atol=0)


def test_gspo_token_gradient_equals_the_broadcast_sequence_ratio():
    now, old, advantages, mask, _ = oracle_inputs("gspo_loss_unclipped")
    weights = loss_weights(mask, mode="seq-mean-token-mean")
    weighted_sum(
        sequence_surrogate(now, old, advantages, mask, clip_low=0.5, clip_high=0.5), weights
    ).backward()
    got, now.grad = now.grad, None
    ratio = torch.where(mask, now - old, 0).sum(1).div(mask.sum(1)).exp()
    (-(ratio * advantages).mean()).backward()
    close(got, now.grad, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("log_ratio", "advantage", "wanted"),
    [
        (0.0, 2.0, -2.0),
        (1.0, 2.0, -2.0 * 1.28),  # a good token that became likely: clipped above
        (-1.0, 2.0, -2.0 * 2.718281828459045**-1),  # not clipped: pessimistic
        (-1.0, -2.0, 2.0 * 0.8),  # a bad token that became unlikely: clipped below
        (1.0, -2.0, 2.0 * 2.718281828459045),  # not clipped without the dual clip
    ],
)
def test_clipped_surrogate_by_hand(log_ratio, advantage, wanted):
    got = clipped_surrogate(f64([[log_ratio]]), f64([[0.0]]), f64([[advantage]]), clip_high=0.28)
    close(got.item(), wanted, rtol=1e-14, atol=0)


def test_dual_clip_bounds_only_bad_tokens():
    now, old = f64([[2.0, 2.0]]), f64([[0.0, 0.0]])
    got = clipped_surrogate(now, old, f64([[-1.0, 1.0]]), dual_clip=3)
    close(got, f64([[3.0, -1.2]]))


def test_clipped_tokens_have_no_gradient():
    now = f64([[1.0, -1.0, 0.0]]).requires_grad_()
    clipped_surrogate(now, torch.zeros_like(now), f64([[1.0, -1.0, 1.0]])).sum().backward()
    assert now.grad.tolist() == [[0.0, 0.0, -1.0]]


def test_sapo_by_hand():
    now = f64([[0.0, 0.0, 1.0]]).requires_grad_()
    losses = sapo(now, torch.zeros_like(now), f64([[1.0, -1.0, 1.0]]), tau_pos=2.0, tau_neg=4.0)
    e = 2.718281828459045
    close(losses[0, :2], f64([-1.0, 0.5]))  # (4/τ)·½
    close(losses[0, 2], -2 / (1 + (-2 * (f64(e) - 1)).exp()))
    losses.sum().backward()
    close(now.grad[0, :2], f64([-1.0, 1.0]))  # on-policy it is the policy gradient


def test_gmpo_by_hand():
    # Good row: 0.6 is cut to 0.4, −0.2 stays. Bad row: 0.6 stays, −0.6 is cut to −0.4.
    now = f64([[0.6, -0.2], [0.6, -0.6]])
    mask = torch.ones(2, 2, dtype=torch.bool)
    got = gmpo(now, torch.zeros_like(now), f64([2.0, -1.0]), mask)
    close(got[:, 0], f64([-2 * 2.718281828459045**0.1, 2.718281828459045**0.1]))
    assert torch.equal(got[:, 0], got[:, 1])


def test_gmpo_masked_token_enters_neither_mean():
    now, mask = f64([[0.2, 5.0]]), torch.tensor([[True, False]])
    got = gmpo(now, torch.zeros_like(now), f64([[1.0, -7.0]]), mask)
    close(got, f64([[-(2.718281828459045**0.2), 0.0]]))


def test_reinforce_by_hand():
    now = f64([[-0.5, -1.0]]).requires_grad_()
    losses = reinforce(now, f64([2.0]))
    losses.sum().backward()
    assert losses.tolist() == [[1.0, 2.0]]
    assert now.grad.tolist() == [[-2.0, -2.0]]


@pytest.mark.parametrize("name", LOSSES)
@laws
@given(seed=st.integers(0, 10_000))
def test_masked_values_never_leak(name, seed):
    now, old, advantages, mask = random_case(seed)
    clean_now = now.clone().requires_grad_()
    dirty_now = torch.where(mask, now, NAN).requires_grad_()
    clean = LOSSES[name](clean_now, old, advantages, mask)
    dirty = LOSSES[name](
        dirty_now, torch.where(mask, old, -torch.inf), torch.where(mask, advantages, NAN), mask
    )
    assert torch.equal(clean, dirty)
    assert torch.equal(dirty[~mask], torch.zeros_like(dirty[~mask]))
    clean.sum().backward()
    dirty.sum().backward()
    assert torch.equal(clean_now.grad, dirty_now.grad)
    assert torch.equal(dirty_now.grad[~mask], torch.zeros_like(dirty[~mask]))


@pytest.mark.parametrize("name", LOSSES)
@laws
@given(seed=st.integers(0, 10_000))
def test_rows_are_separable_and_padding_is_neutral(name, seed):
    now, old, advantages, mask = random_case(seed)
    whole = LOSSES[name](now, old, advantages, mask)
    pad = torch.full((1, 3), NAN, dtype=torch.float64)
    for i in range(3):
        alone = [torch.cat([x[i : i + 1], pad], 1) for x in (now, old, advantages)]
        wide = torch.cat([mask[i : i + 1], torch.zeros(1, 3, dtype=torch.bool)], 1)
        close(LOSSES[name](*alone, wide)[:, :5], whole[i : i + 1], rtol=1e-14, atol=1e-15)


# The others are built with stop-gradients: finite differences of the value are not their gradient.
@pytest.mark.parametrize("name", ["clipped", "dual_clip", "sapo", "gmpo", "reinforce"])
def test_gradients_against_finite_differences(name):
    now, old, advantages, mask = random_case(11)
    mask[0] = True
    now.requires_grad_()
    assert torch.autograd.gradcheck(lambda x: LOSSES[name](x, old, advantages, mask), now)


@pytest.mark.parametrize("name", LOSSES)
def test_on_policy_gradient_is_the_policy_gradient(name):
    now, _, advantages, mask = random_case(5)
    advantages = advantages[:, :1].expand_as(now)
    now.requires_grad_()
    weights = loss_weights(mask, mode="seq-mean-token-mean")
    # The same tensor as old: a ratio that was not detached would have no gradient at all.
    weighted_sum(LOSSES[name](now, now, advantages, mask), weights).backward()
    close(now.grad, torch.where(mask, -advantages * weights, 0.0), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", LOSSES)
def test_one_advantage_a_sequence_is_spread_over_its_tokens(name):
    now, old, advantages, mask = random_case(6)
    per_row = advantages[:, 0]
    spread = per_row[:, None].expand_as(now)
    assert torch.equal(LOSSES[name](now, old, per_row, mask), LOSSES[name](now, old, spread, mask))


@pytest.mark.parametrize("name", LOSSES)
def test_constants_get_no_gradient(name):
    now, old, advantages, mask = random_case(7)
    now.requires_grad_()
    old.requires_grad_()
    advantages.requires_grad_()
    LOSSES[name](now, old, advantages, mask).sum().backward()
    assert old.grad is None
    assert advantages.grad is None


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("gap", [1e4, -1e4])
def test_extreme_ratios_stay_finite_in_float32(name, gap):
    now = torch.full((1, 3), -1.0, requires_grad=True)
    losses = LOSSES[name](now, now.detach() - gap, torch.ones(1, 3), torch.ones(1, 3).bool())
    losses.sum().backward()
    assert losses.isfinite().all()
    assert now.grad.isfinite().all()


@pytest.mark.parametrize("name", LOSSES)
def test_at_least_float32(name):
    half = torch.zeros(1, 2, dtype=torch.bfloat16)
    mask = torch.ones(1, 2, dtype=torch.bool)
    assert LOSSES[name](half, half, half, mask).dtype == torch.float32
    assert LOSSES[name](half, half, half.double(), mask).dtype == torch.float64


@pytest.mark.parametrize(
    ("loss", "options"),
    [
        (clipped_surrogate, {"clip_low": -0.1}),
        (clipped_surrogate, {"clip_high": NAN}),
        (clipped_surrogate, {"dual_clip": 1.0}),
        (sequence_surrogate, {"clip_low": 2.0}),
        (cispo, {"clip_high": -1.0}),
        (sapo, {"tau_pos": 0.0}),
        (gmpo, {"clip_low": -0.4}),
    ],
)
def test_options_out_of_range_are_refused(loss, options):
    x = torch.zeros(1, 2)
    with pytest.raises(ValueError, match=r"clip|tau"):
        loss(x, x, x, x.bool(), **options)


def test_shapes_that_would_broadcast_are_refused():
    # TypeError is the run-time type checker's, where that is switched on.
    x = torch.zeros(2, 3)
    for advantages in (torch.zeros(2, 1), torch.zeros(3)):
        with pytest.raises((ValueError, TypeError)):
            clipped_surrogate(x, x, advantages)
