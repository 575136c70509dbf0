import json
from pathlib import Path

import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from bestiary.ops._scan import reverse_scan
from bestiary.ops.returns import discounted_returns, gae, terminal_rewards

CASES = Path(__file__).parents[1] / "cases"
FAULTS = {fault["id"]: fault for fault in yaml.safe_load((CASES / "faults.yaml").read_text())}
ORACLES = {c["name"]: c for c in json.loads((CASES / "oracles.json").read_text())["cases"]}
NAN = float("nan")
close = torch.testing.assert_close
laws = settings(max_examples=40, deadline=None)  # shared machines stall now and then


def row(values):
    return torch.tensor([values], dtype=torch.float64)


def random_case(seed, rows=3, width=9):
    g = torch.Generator().manual_seed(seed)
    rewards, values = torch.randn(2, rows, width, generator=g, dtype=torch.float64)
    mask = torch.rand(rows, width, generator=g) < 0.7
    return rewards, values, mask


def gae_loop(rewards, values, mask, gamma, lam, bootstrap):
    """The recurrence as it is written, one scalar at a time."""
    out = torch.zeros_like(values)
    for i in range(values.shape[0]):
        next_value, advantage = float(bootstrap[i]), 0.0
        for t in reversed(range(values.shape[1])):
            if mask[i, t]:
                delta = float(rewards[i, t]) + gamma * next_value - float(values[i, t])
                advantage = delta + gamma * lam * advantage
                next_value = float(values[i, t])
                out[i, t] = advantage
    return out


def returns_loop(rewards, mask, gamma):
    out = torch.zeros_like(rewards)
    for i in range(rewards.shape[0]):
        total = 0.0
        for t in reversed(range(rewards.shape[1])):
            if mask[i, t]:
                total = float(rewards[i, t]) + gamma * total
                out[i, t] = total
    return out


@pytest.mark.parametrize("name", ["gae_T4", "gae_T4_bootstrap"])
def test_gae_oracle(name):
    given_, wanted = ORACLES[name]["inputs"], ORACLES[name]["expected"]
    rewards, values = row(given_["rewards"]), row(given_["values"])
    mask = torch.ones(1, 4, dtype=torch.bool)
    options = {"gamma": given_["gamma"], "lam": given_["lam"]}
    for bootstrap in (given_["bootstrap"], row([given_["bootstrap"]])[0]):
        advantages, returns = gae(rewards, values, mask, bootstrap=bootstrap, **options)
        close(advantages, row(wanted["advantages"]), rtol=1e-12, atol=1e-12)
        close(returns, advantages + values)
        if "returns" in wanted:
            close(returns, row(wanted["returns"]), rtol=1e-12, atol=1e-12)


def test_MATH_08_gae_steps_over_tool_tokens():
    given_ = FAULTS["MATH-08"]["input"]
    mask = torch.tensor([given_["mask"]]).bool()
    rewards = row(given_["rewards"])
    advantages, returns = gae(
        rewards, row(given_["values"]), mask, gamma=given_["gamma"], lam=given_["lam"]
    )
    close(advantages, row(FAULTS["MATH-08"]["expected"]["advantages"]), rtol=0, atol=1e-9)
    assert returns[~mask].tolist() == [0.0, 0.0]
    # Four sampled tokens: the discount has three steps, not five.
    close(discounted_returns(rewards, mask, gamma=0.9)[0, 0].item(), 0.9**3)


def test_MATH_05_score_sits_on_the_last_generated_token():
    given_, wanted = FAULTS["MATH-05"]["input"], FAULTS["MATH-05"]["expected"]
    mask = torch.tensor([given_["response_ids"]]) != given_["pad"]
    rewards = terminal_rewards(torch.tensor([given_["score"]], dtype=torch.float64), mask)
    assert rewards.tolist() == [wanted["reward_vector"]]
    advantages, _ = gae(
        rewards, row(given_["values"]).double(), mask, gamma=given_["gamma"], lam=given_["lam"]
    )
    close(advantages, row(wanted["advantages"]).double(), rtol=0, atol=1e-9)


def test_MATH_06_reward_lands_on_the_end_token_even_if_it_is_the_pad_token():
    given_ = FAULTS["MATH-06"]["input"]
    mask = torch.arange(5)[None] < given_["generated_length"]
    rewards = terminal_rewards(torch.tensor([1.0]), mask)
    assert rewards[0].nonzero().tolist() == [[FAULTS["MATH-06"]["expected"]["reward_index"]]]


def test_terminal_reward_skips_trailing_tool_tokens_and_empty_rows():
    mask = torch.tensor([[True, True, False], [False, False, False], [True, False, True]])
    rewards = terminal_rewards(torch.tensor([1.0, NAN, 3.0]), mask)
    assert rewards.tolist() == [[0.0, 1.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 3.0]]


def test_terminal_rewards_need_one_score_a_row():
    with pytest.raises((ValueError, TypeError)):
        terminal_rewards(torch.ones(1), torch.ones(2, 3, dtype=torch.bool))


@laws
@given(
    seed=st.integers(0, 10_000),
    gamma=st.sampled_from([0.0, 0.9, 1.0]),
    lam=st.sampled_from([0.0, 0.5, 1.0]),
)
def test_gae_equals_the_loop(seed, gamma, lam):
    rewards, values, mask = random_case(seed)
    bootstrap = values.flip(0)[:, 0]
    advantages, returns = gae(rewards, values, mask, gamma=gamma, lam=lam, bootstrap=bootstrap)
    wanted = gae_loop(rewards, values, mask, gamma, lam, bootstrap)
    close(advantages, wanted, rtol=1e-12, atol=1e-12)
    close(returns, torch.where(mask, wanted + values, 0.0), rtol=1e-12, atol=1e-12)


@laws
@given(seed=st.integers(0, 10_000), gamma=st.sampled_from([0.0, 0.7, 1.0]))
def test_discounted_returns_equal_the_loop(seed, gamma):
    rewards, _, mask = random_case(seed)
    wanted = returns_loop(rewards, mask, gamma)
    close(discounted_returns(rewards, mask, gamma=gamma), wanted, rtol=1e-12, atol=1e-12)


@laws
@given(seed=st.integers(0, 10_000))
def test_gae_lambda_one_is_monte_carlo_minus_value(seed):
    rewards, values, mask = random_case(seed)
    advantages, _ = gae(rewards, values, mask, gamma=0.9, lam=1.0)
    wanted = torch.where(mask, discounted_returns(rewards, mask, gamma=0.9) - values, 0.0)
    close(advantages, wanted, rtol=1e-12, atol=1e-12)


def test_gae_lambda_zero_is_the_td_error():
    rewards, values = row([1.0, 2.0, 3.0]), row([0.5, 0.25, 0.125])
    advantages, _ = gae(rewards, values, torch.ones(1, 3, dtype=torch.bool), gamma=0.5, lam=0.0)
    assert advantages.tolist() == [[1 + 0.125 - 0.5, 2 + 0.0625 - 0.25, 3 - 0.125]]


@laws
@given(seed=st.integers(0, 10_000), extra=st.integers(1, 9))
def test_padding_changes_no_bit(seed, extra):
    rewards, values, mask = random_case(seed)
    junk = torch.full((3, extra), NAN, dtype=torch.float64)
    wide = [torch.cat([x, junk], 1) for x in (rewards, values)]
    wide_mask = torch.cat([mask, torch.zeros(3, extra, dtype=torch.bool)], 1)
    short = gae(rewards, values, mask, gamma=0.97)
    long = gae(*wide, wide_mask, gamma=0.97)
    for a, b in zip(short, long, strict=True):
        assert torch.equal(a, b[:, :9])
        assert torch.equal(b[:, 9:], torch.zeros(3, extra, dtype=torch.float64))


@laws
@given(seed=st.integers(0, 10_000))
def test_masked_values_never_leak(seed):
    rewards, values, mask = random_case(seed)
    values.requires_grad_()
    dirty = gae(torch.where(mask, rewards, NAN), torch.where(mask, values, NAN), mask)
    assert torch.equal(dirty[0], gae(rewards, values, mask)[0])
    dirty[0].sum().backward()
    assert values.grad.isfinite().all()


@laws
@given(seed=st.integers(0, 10_000))
def test_a_gap_changes_nothing(seed):
    rewards, values, _ = random_case(seed)
    full = torch.ones(3, 9, dtype=torch.bool)

    def spread(x, fill):
        return torch.cat([x[:, :4], torch.full((3, 2), fill).to(x), x[:, 4:]], 1)

    gapped, _ = gae(spread(rewards, 7.0), spread(values, -3.0), spread(full, False), gamma=0.8)
    whole, _ = gae(rewards, values, full, gamma=0.8)
    close(gapped[:, [0, 1, 2, 3, 6, 7, 8, 9, 10]], whole, rtol=1e-12, atol=1e-12)


def test_gradients_of_the_recurrences():
    rewards, values, mask = random_case(5, rows=2, width=5)
    rewards.requires_grad_()
    values.requires_grad_()
    assert torch.autograd.gradcheck(lambda r, v: gae(r, v, mask, gamma=0.9), (rewards, values))
    decay = torch.rand(2, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(reverse_scan, (decay, rewards))


@pytest.mark.parametrize("width", [0, 1, 2, 3, 64])
def test_every_width(width):
    ones = torch.ones(2, width)
    totals = discounted_returns(ones, ones.bool())
    assert totals.tolist() == [list(range(width, 0, -1))] * 2


def test_integer_and_half_precision_rewards_become_float32():
    mask = torch.ones(1, 2, dtype=torch.bool)
    assert discounted_returns(torch.tensor([[1, 2]]), mask).dtype == torch.float32
    advantages, _ = gae(
        torch.ones(1, 2, dtype=torch.bfloat16), torch.ones(1, 2, dtype=torch.bfloat16), mask
    )
    assert advantages.dtype == torch.float32


@pytest.mark.parametrize("options", [{"gamma": 1.1}, {"lam": -0.1}, {"gamma": NAN}])
def test_discounts_outside_the_unit_interval_are_refused(options):
    ones = torch.ones(1, 2)
    with pytest.raises(ValueError, match=next(iter(options))):
        gae(ones, ones, ones.bool(), **options)
