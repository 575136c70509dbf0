"""Tokens chosen over a whole batch: against sorting, in any split into shards."""

import threading

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bestiary.ops.selection import advantage_covariance, largest, random_priority

FLOATS = st.floats(-1e3, 1e3).map(lambda v: round(v, 1))  # rounded, so that ties happen


class Shards:
    """A reduction over threads that stand for ranks."""

    def __init__(self, world):
        self.barrier, self.parts = threading.Barrier(world), [None] * world

    def of(self, rank):
        shards = self

        class Reduce:
            def sum(self, x):
                shards.parts[rank] = x
                shards.barrier.wait()
                total = sum(shards.parts[1:], shards.parts[0].clone())
                shards.barrier.wait()
                return total

        return Reduce()


def on_shards(function, world, *tensors):
    """The rows of the tensors over ``world`` threads, put together again."""
    shards, out = Shards(world), [None] * world
    parts = [torch.tensor_split(t, world) for t in tensors]

    def work(rank):
        out[rank] = function(*(p[rank] for p in parts), shards.of(rank))

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=20)
    return torch.cat(out)


def sorted_largest(x, mask, k):
    values = np.sort(x[mask].numpy())[::-1]
    if len(values) <= k:
        return mask.clone()
    return (x >= values[k - 1]) & mask


@given(st.lists(st.tuples(FLOATS, st.booleans()), min_size=6, max_size=24), st.integers(1, 8))
def test_the_largest_are_those_of_sorting_in_any_split(cells, k):
    rows = len(cells) // 3
    cells = cells[: rows * 3]
    x = torch.tensor([v for v, _ in cells]).view(rows, 3).double()
    mask = torch.tensor([m for _, m in cells]).view(rows, 3)
    expected = sorted_largest(x, mask, k)
    assert torch.equal(largest(x, mask, k), expected)
    found = on_shards(lambda a, m, r: largest(a, m, k, reduce=r), 2, x, mask)
    assert torch.equal(found, expected)


def test_extreme_values_are_in_order():
    row = [-1e300, -0.0, 0.0, 5e-324, 1e300, -5e-324, float("inf"), -float("inf")]
    x = torch.tensor([row], dtype=torch.float64)
    mask = torch.ones_like(x, dtype=torch.bool)
    assert largest(x, mask, 1).nonzero()[:, 1].tolist() == [6]
    assert largest(x, mask, 3).nonzero()[:, 1].tolist() == [3, 4, 6]
    # The two zeros are equal: both are taken where one would do.
    assert largest(x, mask, 4).nonzero()[:, 1].tolist() == [1, 2, 3, 4, 6]
    with pytest.raises(ValueError, match="k=0"):
        largest(x, mask, 0)


def test_nothing_to_take():
    x = torch.zeros(2, 3)
    none = torch.zeros(2, 3, dtype=torch.bool)
    assert not largest(x, none, 2).any()


def test_the_covariance_by_hand():
    logprobs = torch.tensor([[-1.0, -3.0], [-2.0, 9.0]])
    advantages = torch.tensor([[1.0, 1.0], [-2.0, 9.0]])
    mask = torch.tensor([[True, True], [True, False]])
    # means: log π = -2, A = 0
    expected = torch.tensor([[1.0 * 1.0, -1.0 * 1.0], [0.0 * -2.0, 0.0]])
    assert torch.equal(advantage_covariance(logprobs, advantages, mask), expected.double())
    split = on_shards(
        lambda a, b, m, r: advantage_covariance(a, b, m, reduce=r), 2, logprobs, advantages, mask
    )
    assert torch.equal(split, expected.double())


def test_its_mean_is_the_covariance_of_numpy():
    torch.manual_seed(0)
    a, b = torch.randn(5, 7).double(), torch.randn(5, 7).double()
    mask = torch.rand(5, 7) < 0.7
    mean = advantage_covariance(a, b, mask)[mask].mean()
    expected = np.cov(a[mask].numpy(), b[mask].numpy(), ddof=0)[0, 1]
    assert float(mean) == pytest.approx(expected, rel=1e-12)


def splitmix64(state):
    """The generator of Steele et al. 2014, one step, in whole numbers of Python."""
    wrap = (1 << 64) - 1
    z = state & wrap
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & wrap
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & wrap
    return z ^ (z >> 31)


def test_priorities_are_those_of_splitmix64_and_uniform():
    keys = np.array([0, 1, 2**63 + 5, 2**64 - 1], dtype=np.uint64)
    found = random_priority(torch.from_numpy(keys.view(np.int64)), 3)
    for i, key in enumerate(keys.tolist()):
        for t in range(3):
            z = splitmix64(key + (t + 1) * 0x9E3779B97F4A7C15)
            assert found[i, t].item() == (z >> 11) / 2.0**53
    many = random_priority(torch.arange(200), 50)
    assert float(many.min()) >= 0.0
    assert float(many.max()) < 1.0
    assert float(many.mean()) == pytest.approx(0.5, abs=0.01)
    assert len(torch.unique(many)) == many.numel()
