"""Balanced parts: laws, and against the best partition by enumeration."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bestiary.batch.partition import balanced, differencing, longest_first

COSTS = st.lists(st.integers(1, 50), min_size=1, max_size=40)


def loads(costs, parts):
    return [sum(costs[i] for i in part) for part in parts]


def best(costs, k):
    """The smallest possible largest part."""
    return min(
        max(loads(costs, [[i for i, p in enumerate(where) if p == part] for part in range(k)]))
        for where in product(range(k), repeat=len(costs))
    )


@given(COSTS, st.integers(1, 9))
@settings(deadline=None)
def test_every_item_once_and_never_worse_than_longest_first(costs, k):
    found = balanced(costs, k)
    assert sorted(i for part in found for i in part) == list(range(len(costs)))
    assert len(found) == k
    assert sum(bool(part) for part in found) == min(k, len(costs))
    greedy = longest_first(np.array(costs, dtype=float), k)
    assert max(loads(costs, found)) <= max(loads(costs, greedy))
    assert loads(costs, found) == sorted(loads(costs, found), reverse=True)


@given(st.lists(st.integers(1, 30), min_size=1, max_size=7), st.integers(2, 3))
@settings(max_examples=60, deadline=None)
def test_it_is_within_four_thirds_of_the_best(costs, k):
    assert max(loads(costs, balanced(costs, k))) <= 4 / 3 * best(costs, k) + 1e-9


def test_karmarkar_and_karp_by_hand():
    # 8 7 6 5 4 in two: differencing joins 8-7, 6-5, then 4-1, 3-1: a spread of 2 (16 and 14).
    parts = differencing(np.array([8.0, 7.0, 6.0, 5.0, 4.0]), 2)
    assert sorted(loads([8, 7, 6, 5, 4], parts)) == [14, 16]
    # Longest first gives 17 and 13.
    assert sorted(loads([8, 7, 6, 5, 4], longest_first(np.array([8.0, 7, 6, 5, 4]), 2))) == [13, 17]


def test_it_evens_out_what_longest_first_does_not():
    rng = np.random.default_rng(0)
    better = 0
    for _ in range(50):
        costs = rng.lognormal(5, 1, 64)
        mine = max(loads(costs, balanced(costs, 8)))
        assert mine <= max(loads(costs, longest_first(costs, 8)))
        better += mine < max(loads(costs, longest_first(costs, 8)))
    assert better > 25


def test_the_loads_do_not_depend_on_the_order_of_items():
    costs = [9, 2, 7, 7, 1, 4, 12, 3]
    moved = [costs[i] for i in (3, 0, 7, 5, 1, 6, 2, 4)]
    assert loads(costs, balanced(costs, 3)) == loads(moved, balanced(moved, 3))


def test_nothing_and_nonsense():
    assert balanced([], 2) == [[], []]
    assert balanced([0.0, 0.0], 2) is not None
    with pytest.raises(ValueError, match="parts=0"):
        balanced([1.0], 0)
    with pytest.raises(ValueError, match="at least 0"):
        balanced([-1.0], 2)
