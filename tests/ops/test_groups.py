import itertools
import json
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from bestiary.ops.groups import group_advantages

CASES = Path(__file__).parents[1] / "cases"
FAULTS = {fault["id"]: fault for fault in yaml.safe_load((CASES / "faults.yaml").read_text())}
ORACLES = {c["name"]: c for c in json.loads((CASES / "oracles.json").read_text())["cases"]}
NAN = float("nan")
close = torch.testing.assert_close
laws = settings(max_examples=40, deadline=None)  # shared machines stall now and then

BASELINES = ["mean", "leave_one_out", "none", "length_weighted"]
SCALES = ["none", "std", "leave_one_out_std", "batch_std"]
OPTIONS = list(itertools.product(BASELINES, SCALES))


def f64(values):
    return torch.tensor(values, dtype=torch.float64)


def random_case(seed, rows=12):
    g = torch.Generator().manual_seed(seed)
    # Few distinct rewards, so that ties, flat groups and flat "others" are common.
    rewards = torch.randint(0, 4, (rows,), generator=g).double() / 3
    groups = torch.randint(0, 4, (rows,), generator=g) * 1_000_003 - 7
    lengths = torch.randint(0, 9, (rows,), generator=g)
    return rewards, groups, lengths


def slow_advantages(rewards, groups, lengths, baseline, scale, ddof, eps):
    """One sample at a time in numpy, with the definitions as written."""
    r, g, n = rewards.numpy(), groups.numpy(), lengths.numpy()
    out = np.zeros(len(r))
    for i in range(len(r)):
        mine = r[g == g[i]]
        others = r[(g == g[i]) & (np.arange(len(r)) != i)]
        uses_group = baseline != "none" or scale in ("std", "leave_one_out_std")
        if uses_group and mine.max() == mine.min():
            continue
        weight = n[g == g[i]]
        b = 0.0
        if baseline == "leave_one_out":
            b = others.mean()
        elif baseline == "length_weighted" and weight.sum():
            b = (weight * mine).sum() / weight.sum()
        elif baseline != "none":
            b = mine.mean()
        s = 1.0
        if scale == "std":
            s = mine.std(ddof=ddof) + eps
        elif scale == "leave_one_out_std" and others.max() > others.min():
            s = others.std(ddof=ddof) + eps
        elif scale == "batch_std" and r.max() > r.min():
            s = r.std(ddof=ddof) + eps
        out[i] = (r[i] - b) / s
    return torch.from_numpy(out)


@pytest.mark.parametrize(
    "name",
    [
        "grpo_advantage_verl_skyrl",
        "grpo_advantage_trl_forge",
        "grpo_advantage_population",
        "grpo_zero_std_group",
    ],
)
def test_grpo_oracle(name):
    given_, wanted = ORACLES[name]["inputs"], ORACLES[name]["expected"]
    got = group_advantages(
        f64(given_["rewards"]),
        torch.tensor(given_["groups"]),
        scale="std",
        ddof=given_["ddof"],
        eps=given_["eps"],
    )
    close(got, f64(wanted["advantages"]), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("grpo_nemo_leave_one_out", {"baseline": "leave_one_out", "scale": "leave_one_out_std"}),
        ("dr_grpo_advantage", {}),
        ("rloo_k4", {"baseline": "leave_one_out"}),
    ],
)
def test_group_oracle(name, options):
    given_, wanted = ORACLES[name]["inputs"], ORACLES[name]["expected"]
    rewards = f64(given_["rewards"])
    groups = torch.tensor(given_.get("groups", [0] * len(rewards)))
    got = group_advantages(rewards, groups, **options)
    close(got, f64(wanted["advantages"]), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("baseline", "scale"), OPTIONS)
def test_MATH_01_singleton_is_finite_and_zero(baseline, scale):
    given_ = FAULTS["MATH-01"]["input"]
    got = group_advantages(
        *(f64(given_["rewards"]), torch.tensor(given_["group_ids"])),
        baseline=baseline,
        scale=scale,
        lengths=torch.tensor([4]),
    )
    uses_group = baseline != "none" or scale in ("std", "leave_one_out_std")
    assert got.tolist() == (FAULTS["MATH-01"]["expected"]["advantages"] if uses_group else [0.7])


def test_singleton_options():
    rewards, groups = f64([0.7, 1.0, 0.0]), torch.tensor([9, 4, 4])
    for singleton, wanted in {"zero": 0.0, "raw": 0.7, "scaled": 0.7 / (1 + 1e-6)}.items():
        got = group_advantages(rewards, groups, scale="std", singleton=singleton)
        close(got[0].item(), wanted, rtol=1e-15, atol=0)
    unscaled = group_advantages(rewards, groups, singleton="scaled")
    assert unscaled[0].item() == 0.7
    by_batch = group_advantages(rewards, groups, scale="batch_std", singleton="scaled")
    close(by_batch[0].item(), 0.7 / (rewards.std().item() + 1e-6), rtol=1e-14, atol=0)


def test_group_with_one_valid_sample_is_a_singleton():
    got = group_advantages(
        f64([0.7, NAN, NAN]),
        torch.zeros(3, dtype=torch.int64),
        scale="std",
        singleton="raw",
        valid=torch.tensor([True, False, False]),
    )
    assert got.tolist() == [0.7, 0.0, 0.0]


def test_REW_04_missing_reward_leaves_the_statistics():
    case = FAULTS["REW-04"]
    rewards = f64([NAN if r is None else r for r in case["input"]["rewards"]])
    got = group_advantages(
        rewards, torch.zeros(4, dtype=torch.int64), scale="std", valid=~rewards.isnan()
    )
    close(got, f64(case["expected"]["advantages"]), rtol=0, atol=case["tolerance"])
    assert got[2].item() == 0.0


def test_DATA_06_empty_sample_counts_in_the_baseline_or_not():
    case = FAULTS["DATA-06"]
    rewards, groups = f64(case["input"]["rewards"]), torch.zeros(3, dtype=torch.int64)
    has_tokens = torch.tensor(case["input"]["response_lengths"]) > 0
    excluded = group_advantages(rewards, groups, valid=has_tokens)
    close(excluded, f64(case["expected"]["excluded"]), rtol=0, atol=1e-12)
    included = group_advantages(rewards, groups)
    close(included, f64(case["expected"]["included"]), rtol=0, atol=1e-12)


def test_ASYNC_03_groups_are_joined_by_label_in_any_order():
    case = FAULTS["ASYNC-03"]
    order = torch.tensor(case["input"]["arrival_order"])
    rewards, groups = f64(case["input"]["rewards"]), torch.tensor(case["input"]["group_ids"])
    got = group_advantages(rewards[order], groups[order])
    assert got.tolist() == case["expected"]["centred"]


def test_MATH_19_advantage_over_the_greedy_reward():
    case = FAULTS["MATH-19"]
    rewards = f64(case["input"]["rewards"]) - case["input"]["greedy_reward"]
    got = group_advantages(rewards, torch.zeros(3, dtype=torch.int64), baseline="none")
    close(got, f64(case["expected"]["advantages"]), rtol=0, atol=1e-12)


def test_opo_baseline_by_hand():
    # Baseline of the first group: (1·3 + 0·1) / 4; in the second, without any token, the mean.
    got = group_advantages(
        f64([1.0, 0.0, 4.0, 2.0]),
        torch.tensor([0, 0, 1, 1]),
        baseline="length_weighted",
        lengths=torch.tensor([3, 1, 0, 0]),
    )
    assert got.tolist() == [0.25, -0.75, 1.0, -1.0]


def test_batch_std_by_hand():
    # Rewards 0, 2, 4, 6: variance 20/3 over n − 1 and 5 over n.
    rewards, groups = f64([0.0, 2.0, 4.0, 6.0]), torch.tensor([0, 0, 1, 1])
    got = group_advantages(rewards, groups, scale="batch_std", eps=0)
    close(got, f64([-1.0, 1.0, -1.0, 1.0]) / (20 / 3) ** 0.5)
    got = group_advantages(rewards, groups, scale="batch_std", ddof=0, eps=0)
    close(got, f64([-1.0, 1.0, -1.0, 1.0]) / 5**0.5)


def test_no_baseline_and_no_group_scale_keeps_equal_rewards():
    ones, groups = f64([1.0, 1.0]), torch.tensor([0, 0])
    for scale in ("none", "batch_std"):
        assert group_advantages(ones, groups, baseline="none", scale=scale).tolist() == [1.0, 1.0]
    assert group_advantages(ones, groups, baseline="none", scale="std").tolist() == [0.0, 0.0]


def test_deviation_of_others_does_not_cancel():
    # An outlier beside samples that differ in the ninth digit: the outlier's own scale is tiny.
    rewards = f64([1e6, 0.5, 0.5 + 1e-9])
    got = group_advantages(
        rewards, torch.zeros(3, dtype=torch.int64), scale="leave_one_out_std", eps=0
    )
    others = rewards[1:].std()
    close(got[0], (rewards[0] - rewards.mean()) / others, rtol=1e-9, atol=0)


@pytest.mark.parametrize("ddof", [0, 1])
@pytest.mark.parametrize(("baseline", "scale"), OPTIONS)
def test_advantages_equal_the_definition(baseline, scale, ddof):
    for seed in range(12):
        rewards, groups, lengths = random_case(seed)
        got = group_advantages(
            rewards, groups, baseline=baseline, scale=scale, ddof=ddof, eps=1e-3, lengths=lengths
        )
        wanted = slow_advantages(rewards, groups, lengths, baseline, scale, ddof, 1e-3)
        close(got, wanted, rtol=1e-10, atol=1e-10)


@laws
@given(
    seed=st.integers(0, 10_000),
    option=st.sampled_from(OPTIONS),
    order=st.permutations(range(12)),
)
def test_order_and_labels_change_no_bit(seed, option, order):
    rewards, groups, lengths = random_case(seed)
    rewards = rewards + torch.randn(12, generator=torch.Generator().manual_seed(seed)).double()
    baseline, scale = option
    options = {"baseline": baseline, "scale": scale}
    got = group_advantages(rewards, groups, lengths=lengths, **options)
    order = torch.tensor(order)
    moved = group_advantages(rewards[order], groups[order], lengths=lengths[order], **options)
    assert torch.equal(moved, got[order])
    if scale != "batch_std":  # there the samples are summed group by group
        renamed = group_advantages(rewards, -3 * groups, lengths=lengths, **options)
        assert torch.equal(renamed, got)


@laws
@given(
    seed=st.integers(0, 10_000),
    baseline=st.sampled_from(["mean", "leave_one_out", "length_weighted"]),
    scale=st.sampled_from(SCALES),
    shift=st.floats(-5, 5),
    factor=st.sampled_from([0.25, 0.5, 2.0, 8.0]),
)
def test_shift_is_ignored_and_scaling_divides_out(seed, baseline, scale, shift, factor):
    rewards, groups, lengths = random_case(seed)
    options = {"baseline": baseline, "scale": scale, "eps": 0.0, "lengths": lengths}
    got = group_advantages(rewards, groups, **options)
    shifted = group_advantages(rewards + shift, groups, **options)
    close(shifted, got, rtol=1e-9, atol=1e-9)
    scaled = group_advantages(rewards * factor, groups, **options)
    if scale == "none":
        close(scaled, got * factor, rtol=1e-12, atol=1e-12)
    elif scale != "leave_one_out_std":  # unscaled where the others agree
        close(scaled, got, rtol=1e-12, atol=1e-12)


@laws
@given(seed=st.integers(0, 10_000), scale=st.sampled_from(["none", "std"]))
def test_centred_groups_sum_to_zero(seed, scale):
    rewards, groups, _ = random_case(seed)
    got = group_advantages(rewards, groups, scale=scale)
    for label in groups.unique():
        assert abs(float(got[groups == label].sum())) < 1e-9


@laws
@given(seed=st.integers(0, 10_000), option=st.sampled_from(OPTIONS))
def test_invalid_samples_are_as_if_absent(seed, option):
    rewards, groups, lengths = random_case(seed)
    valid = torch.rand(12, generator=torch.Generator().manual_seed(seed)) < 0.6
    options = {"baseline": option[0], "scale": option[1]}
    got = group_advantages(
        torch.where(valid, rewards, NAN), groups, valid=valid, lengths=lengths, **options
    )
    alone = group_advantages(rewards[valid], groups[valid], lengths=lengths[valid], **options)
    assert torch.equal(got[valid], alone)
    assert torch.equal(got[~valid], torch.zeros_like(got[~valid]))


def test_large_equal_float32_rewards_are_exactly_zero():
    rewards = torch.full((7,), 1000.1)
    got = group_advantages(rewards, torch.zeros(7, dtype=torch.int64), scale="std")
    assert torch.equal(got, torch.zeros(7))


@pytest.mark.parametrize(
    ("given_dtype", "wanted"),
    [
        (torch.int64, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ],
)
def test_result_is_at_least_float32(given_dtype, wanted):
    rewards = torch.tensor([1, 0], dtype=given_dtype)
    got = group_advantages(rewards, torch.zeros(2, dtype=torch.int64))
    assert got.dtype == wanted
    assert got.tolist() == [0.5, -0.5]


@pytest.mark.parametrize("scale", SCALES)
def test_empty_batches(scale):
    empty = group_advantages(f64([]), torch.zeros(0, dtype=torch.int64), scale=scale)
    assert empty.tolist() == []
    nothing = group_advantages(
        f64([NAN]), torch.tensor([0]), scale=scale, valid=torch.tensor([False])
    )
    assert nothing.tolist() == [0.0]


def test_nan_reward_without_valid_is_refused_with_the_way_out():
    with pytest.raises(ValueError, match="valid="):
        group_advantages(f64([1.0, NAN]), torch.tensor([0, 0]))


def test_length_weighted_without_lengths_is_refused():
    with pytest.raises(ValueError, match="lengths="):
        group_advantages(f64([1.0]), torch.tensor([0]), baseline="length_weighted")


@pytest.mark.parametrize(
    "options", [{"baseline": "median"}, {"scale": "mad"}, {"singleton": "one"}, {"ddof": 2}]
)
def test_unknown_options_are_refused(options):
    # TypeError is the run-time type checker's, where that is switched on.
    with pytest.raises((ValueError, TypeError)):
        group_advantages(f64([1.0]), torch.tensor([0]), **options)
