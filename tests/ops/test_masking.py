import threading
from pathlib import Path

import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from bestiary.ops.masking import length_mask, masked_mean, masked_sum, masked_var, whiten

FAULTS = {
    fault["id"]: fault
    for fault in yaml.safe_load((Path(__file__).parents[1] / "cases/faults.yaml").read_text())
}
NAN = float("nan")
close = torch.testing.assert_close
laws = settings(max_examples=40, deadline=None)  # shared machines stall now and then


def random_case(seed, rows=4, width=5):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, width, generator=g, dtype=torch.float64)
    mask = torch.rand(rows, width, generator=g) < 0.6
    return x, mask


def test_masked_mean_by_hand():
    x = torch.tensor([[1.0, 3.0, NAN], [5.0, NAN, NAN]])
    mask = torch.tensor([[True, True, False], [True, False, False]])
    assert masked_mean(x, mask).item() == 3.0
    assert masked_mean(x, mask, dim=-1).tolist() == [2.0, 5.0]
    assert masked_sum(x, mask, dim=0).tolist() == [6.0, 3.0, 0.0]


def test_masked_mean_of_nothing_is_zero_with_zero_gradient():
    x = torch.full((2, 2), NAN, requires_grad=True)
    mask = torch.zeros(2, 2, dtype=torch.bool)
    masked_mean(x, mask).backward()
    assert masked_mean(x, mask).item() == 0.0
    assert masked_mean(x, mask, dim=1).tolist() == [0.0, 0.0]
    assert x.grad.tolist() == [[0.0, 0.0], [0.0, 0.0]]


def test_masked_var_by_hand():
    x = torch.tensor([1.0, 2.0, 6.0, NAN])
    mask = torch.tensor([True, True, True, False])
    assert masked_var(x, mask).item() == 7.0
    close(masked_var(x, mask, ddof=0), torch.tensor(14 / 3))


@pytest.mark.parametrize("count", [0, 1])
def test_masked_var_without_spread_is_zero(count):
    mask = torch.arange(3) < count
    assert masked_var(torch.ones(3), mask).item() == 0.0


@pytest.mark.parametrize(
    ("given_dtype", "wanted"),
    [
        (torch.bfloat16, torch.float32),
        (torch.float16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ],
)
def test_statistics_are_at_least_float32(given_dtype, wanted):
    x = torch.ones(2, 3, dtype=given_dtype)
    mask = torch.ones(2, 3, dtype=torch.bool)
    for result in (masked_mean(x, mask), masked_var(x, mask), whiten(x, mask)):
        assert result.dtype == wanted


def test_masked_mean_of_bfloat16_does_not_lose_counts():
    x = torch.ones(1, 1000, dtype=torch.bfloat16)
    assert masked_sum(x, torch.ones_like(x, dtype=torch.bool)).item() == 1000.0


def test_MATH_10_whitening_one_valid_value_returns_it():
    case = FAULTS["MATH-10"]
    x = torch.tensor(case["input"]["one_valid"]["x"], dtype=torch.float64)
    mask = torch.tensor(case["input"]["one_valid"]["mask"]).bool()
    assert whiten(x, mask).tolist() == case["expected"]["one_valid"]


def test_MATH_10_whitening_ignores_padding():
    case = FAULTS["MATH-10"]
    x = torch.tensor(case["input"]["normal"]["x"], dtype=torch.float64)
    mask = torch.tensor(case["input"]["normal"]["mask"]).bool()
    wanted = torch.tensor(case["expected"]["normal"], dtype=torch.float64)
    close(whiten(x, mask), wanted, rtol=0, atol=case["tolerance"])


@pytest.mark.parametrize("fault", ["MATH-06", "MATH-07"])
def test_mask_comes_from_lengths_never_from_ids(fault):
    case = FAULTS[fault]["input"]
    lengths = torch.tensor(case.get("generated_lengths", [case.get("generated_length")]))
    wanted = (
        torch.tensor(FAULTS[fault]["expected"]["response_mask"]).bool().reshape(len(lengths), -1)
    )
    assert torch.equal(length_mask(lengths, wanted.shape[1]), wanted)


@pytest.mark.parametrize("length", [-1, 4])
def test_length_mask_refuses_impossible_lengths(length):
    with pytest.raises(ValueError, match=r"\[0, 3\]"):
        length_mask(torch.tensor([length]), 3)


@pytest.mark.parametrize(
    ("eps_mode", "scale"),
    [("var_plus", 2.5**0.5), ("var_floor", 2.0**0.5), ("std_plus", 2.0**0.5 + 0.5)],
)
def test_whiten_eps_modes(eps_mode, scale):
    x = torch.tensor([1.0, 3.0], dtype=torch.float64)
    mask = torch.ones(2, dtype=torch.bool)
    close(whiten(x, mask, eps=0.5, eps_mode=eps_mode), (x - 2) / scale)
    close(whiten(x, mask, eps=0.5, eps_mode=eps_mode, center=False), x / scale)


def test_whiten_floor_replaces_a_small_variance():
    x = torch.tensor([1.0, 3.0], dtype=torch.float64)
    mask = torch.ones(2, dtype=torch.bool)
    close(whiten(x, mask, eps=16.0, eps_mode="var_floor"), (x - 2) / 4)


@pytest.mark.parametrize("eps_mode", ["var_plus", "var_floor", "std_plus"])
def test_whiten_of_equal_values_is_exactly_zero(eps_mode):
    x = torch.full((3, 5), 0.1)
    mask = torch.ones(3, 5, dtype=torch.bool)
    assert torch.equal(whiten(x, mask, eps_mode=eps_mode), torch.zeros(3, 5))


def test_whiten_unknown_mode_is_refused():
    # TypeError is the run-time type checker's, where that is switched on.
    with pytest.raises((ValueError, TypeError)):
        whiten(torch.ones(2), torch.ones(2, dtype=torch.bool), eps_mode="plus")


@laws
@given(seed=st.integers(0, 10_000), ddof=st.sampled_from([0, 1]))
def test_whiten_gives_zero_mean_unit_variance(seed, ddof):
    x, mask = random_case(seed)
    if mask.sum() < 3:
        return
    white = whiten(x, mask, ddof=ddof, eps=1e-14)
    close(masked_mean(white, mask), torch.zeros((), dtype=torch.float64), rtol=0, atol=1e-10)
    close(
        masked_var(white, mask, ddof=ddof), torch.ones((), dtype=torch.float64), rtol=1e-8, atol=0
    )


@laws
@given(seed=st.integers(0, 10_000), shift=st.floats(-10, 10), scale=st.floats(0.1, 10))
def test_whiten_ignores_shift_scale_and_masked_values(seed, shift, scale):
    x, mask = random_case(seed)
    if mask.sum() < 2:
        return
    other = torch.where(mask, x * scale + shift, NAN)
    close(whiten(other, mask, eps=1e-30), whiten(x, mask, eps=1e-30), rtol=1e-7, atol=1e-9)


def whiten_in_shards(x, mask, shards):
    """Run one thread a shard, as ranks would, with an all-reduce in a fixed order."""
    parts, barrier = [None] * shards, threading.Barrier(shards)
    results = [None] * shards

    def work(rank):
        class Reduce:
            def sum(self, partial):
                parts[rank] = partial
                barrier.wait()
                total = torch.stack(parts).sum(0)
                barrier.wait()
                return total

        results[rank] = whiten(x[rank::shards], mask[rank::shards], reduce=Reduce())

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(shards)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=20)
    out = torch.empty_like(x)
    for rank in range(shards):
        out[rank::shards] = results[rank]
    return out


@pytest.mark.parametrize("shards", [2, 4])
def test_whiten_over_shards_equals_whole_batch(shards):
    x, mask = random_case(3, rows=8)
    mask[0::shards] = False  # one rank without any valid token still takes part
    close(whiten_in_shards(x, mask, shards), whiten(x, mask), rtol=1e-12, atol=1e-12)


def test_shapes_that_would_broadcast_are_refused():
    with pytest.raises((ValueError, TypeError)):
        masked_mean(torch.ones(2, 3), torch.ones(2, 1, dtype=torch.bool))
