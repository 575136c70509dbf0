import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bestiary.data.order import EpochOrder, epoch_order
from bestiary.errors import CheckpointError, DataError


@given(size=st.integers(1, 40), seed=st.integers(-(2**40), 2**63), epoch=st.integers(0, 5))
def test_an_epoch_is_a_permutation_that_depends_on_seed_and_epoch_only(size, seed, epoch):
    order = epoch_order(size, seed, epoch)
    assert sorted(order) == list(range(size))
    assert np.array_equal(order, epoch_order(size, seed, epoch))


def test_epochs_and_seeds_differ():
    orders = [tuple(epoch_order(50, seed, epoch)) for seed in range(3) for epoch in range(3)]
    assert len(set(orders)) == 9


@given(
    size=st.integers(1, 12),
    seed=st.integers(0, 5),
    takes=st.lists(st.integers(0, 15), max_size=8),
    cut=st.integers(0, 8),
    shuffle=st.booleans(),
)
def test_res01_a_resumed_walk_goes_on_exactly(size, seed, takes, cut, shuffle):
    """RES-01 as a law: wherever a walk is cut, the rest is the same."""
    whole = EpochOrder(size, seed, shuffle=shuffle)
    expected = [whole.next(n).tolist() for n in takes]
    first = EpochOrder(size, seed, shuffle=shuffle)
    got = [first.next(n).tolist() for n in takes[:cut]]
    second = EpochOrder(size, seed, shuffle=shuffle)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    got += [second.next(n).tolist() for n in takes[cut:]]
    assert got == expected
    flat = [i for part in expected for i in part]
    for start in range(0, len(flat) - size + 1, size):
        assert sorted(flat[start : start + size]) == list(range(size))


def test_res01_the_rest_of_epoch_one_after_two_of_six():
    """RES-01: n=6, epoch 1, 2 consumed: the last four of the epoch-1 order, each seen once."""
    order = EpochOrder(6, seed=3)
    order.next(6 + 2)
    resumed = EpochOrder(6, seed=3)
    resumed.load_state_dict(order.state_dict())
    remaining = resumed.next(4).tolist()
    assert remaining == epoch_order(6, 3, 1)[2:].tolist()
    assert remaining != epoch_order(6, 3, 0)[2:].tolist()
    assert sorted(epoch_order(6, 3, 1)[:2].tolist() + remaining) == list(range(6))


@pytest.mark.parametrize(("size", "seed", "name"), [(7, 3, "size=6"), (6, 4, "seed=3")])
def test_a_state_of_another_order_is_refused(size, seed, name):
    state = EpochOrder(6, 3).state_dict()
    with pytest.raises(CheckpointError, match=name):
        EpochOrder(size, seed).load_state_dict(state)


def test_an_empty_source_has_no_order():
    with pytest.raises(DataError, match="0 prompts"):
        EpochOrder(0, 0)
