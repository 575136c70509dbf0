import json
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bestiary.ops.returns import discounted_returns, gae
from bestiary.ops.vtrace import vtrace

CASES = json.loads((Path(__file__).parents[1] / "cases/oracles.json").read_text())["cases"]
ORACLES = {case["name"]: case for case in CASES}
NAN = float("nan")
close = torch.testing.assert_close
laws = settings(max_examples=40, deadline=None)  # shared machines stall now and then


def row(values):
    return torch.tensor([values], dtype=torch.float64)


def random_case(seed, rows=3, width=8):
    g = torch.Generator().manual_seed(seed)
    log_rhos, rewards, values = torch.randn(3, rows, width, generator=g, dtype=torch.float64)
    return log_rhos, rewards, values, torch.rand(rows, width, generator=g) < 0.7


def vtrace_loop(log_rhos, rewards, values, mask, gamma, bootstrap, rho_bar, c_bar, rho_pg):
    targets, advantages = torch.zeros_like(values), torch.zeros_like(values)
    for i in range(values.shape[0]):
        next_v = next_value = float(bootstrap[i])
        for t in reversed(range(values.shape[1])):
            if not mask[i, t]:
                continue
            rho = float(log_rhos[i, t].exp())
            r, value = float(rewards[i, t]), float(values[i, t])
            delta = min(rho_bar, rho) * (r + gamma * next_value - value)
            advantages[i, t] = min(rho_pg, rho) * (r + gamma * next_v - value)
            next_v = value + delta + gamma * min(c_bar, rho) * (next_v - next_value)
            next_value = value
            targets[i, t] = next_v
    return targets, advantages


@pytest.mark.parametrize("name", ["vtrace_on_policy", "vtrace_off_policy"])
def test_vtrace_oracle(name):
    given_, wanted = ORACLES[name]["inputs"], ORACLES[name]["expected"]
    targets, advantages = vtrace(
        row(given_["log_rhos"]),
        row(given_["rewards"]),
        row(given_["values"]),
        torch.ones(1, 4, dtype=torch.bool),
        given_["discounts"][0],
        given_["bootstrap"],
        rho_bar=given_["rho_bar"],
        c_bar=given_["c_bar"],
        rho_pg=given_["rho_pg"],
    )
    close(targets, row(wanted["vs"]), rtol=1e-12, atol=1e-12)
    close(advantages, row(wanted["pg_advantages"]), rtol=1e-12, atol=1e-12)


@laws
@given(
    seed=st.integers(0, 10_000),
    gamma=st.sampled_from([0.0, 0.9, 1.0]),
    cuts=st.tuples(*[st.sampled_from([0.5, 1.0, 2.0])] * 3),
)
def test_vtrace_equals_the_loop(seed, gamma, cuts):
    log_rhos, rewards, values, mask = random_case(seed)
    bootstrap = rewards.flip(1)[:, 0]
    got = vtrace(
        *(log_rhos, rewards, values, mask, gamma, bootstrap),
        **dict(zip(("rho_bar", "c_bar", "rho_pg"), cuts, strict=True)),
    )
    wanted = vtrace_loop(log_rhos, rewards, values, mask, gamma, bootstrap, *cuts)
    for a, b in zip(got, wanted, strict=True):
        close(a, b, rtol=1e-11, atol=1e-11)


@laws
@given(seed=st.integers(0, 10_000))
def test_on_policy_targets_are_returns(seed):
    _, rewards, values, mask = random_case(seed)
    targets, advantages = vtrace(torch.zeros_like(values), rewards, values, mask, 0.9, None)
    close(targets, discounted_returns(rewards, mask, gamma=0.9), rtol=1e-11, atol=1e-11)
    close(advantages, gae(rewards, values, mask, gamma=0.9, lam=1.0)[0], rtol=1e-11, atol=1e-11)


@laws
@given(seed=st.integers(0, 10_000), extra=st.integers(1, 7))
def test_masked_values_and_padding_never_leak(seed, extra):
    log_rhos, rewards, values, mask = random_case(seed)
    clean = vtrace(log_rhos, rewards, values, mask, 0.9, None)
    pad = torch.full((3, extra), NAN, dtype=torch.float64)
    dirty = [torch.cat([torch.where(mask, x, NAN), pad], 1) for x in (log_rhos, rewards, values)]
    wide_mask = torch.cat([mask, torch.zeros(3, extra, dtype=torch.bool)], 1)
    for a, b in zip(clean, vtrace(*dirty, wide_mask, 0.9, None), strict=True):
        assert torch.equal(a, b[:, :8])
        assert torch.equal(b[:, 8:], torch.zeros_like(b[:, 8:]))


def test_huge_log_ratios_stay_finite():
    values = torch.ones(1, 3)
    mask = torch.ones(1, 3, dtype=torch.bool)
    big = torch.tensor([[1e4, 500.0, -1e4]])
    for result in vtrace(big, values, values, mask, 1.0, 0.0, rho_bar=float("inf")):
        assert result.isfinite().all()


@pytest.mark.parametrize("options", [{"gamma": 2.0}, {"rho_bar": -1.0}, {"c_bar": NAN}])
def test_options_out_of_range_are_refused(options):
    x = torch.ones(1, 2)
    arguments = {"gamma": 1.0, "bootstrap": None, **options}
    with pytest.raises(ValueError, match=next(iter(options))):
        vtrace(x, x, x, x.bool(), **arguments)
