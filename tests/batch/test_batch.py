"""Batch: selecting, joining, grouping and cutting without moving tokens."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bestiary.batch import Batch, Column, Ragged, Ready, RowBlock, as_column, row_key, ship


class Late:
    """A handle that counts how often its parts were asked for."""

    def __init__(self, block):
        self.block, self.gets, self.tables = block, 0, 0

    def get(self):
        self.gets += 1
        return self.block

    def table(self):
        self.tables += 1
        return self.block.table


def make(groups, late=None):
    n = len(groups)
    keys = np.array([row_key(g, i) for i, g in enumerate(groups)], dtype=np.uint64)
    table = {"row_key": keys, "group_uid": as_column([f"g{g}" for g in groups])}
    ids = Ragged.from_rows([[i] * (i + 1) for i in range(n)], dtype=np.int64)
    handle = late or Ready(RowBlock({"ids": ids}))
    return Batch(table, {"ids": Column.of([handle], [n])})


def test_a_handle_is_asked_only_when_a_column_is_read():
    handle = Late(RowBlock({"ids": Ragged.from_rows([[1], [2]])}, {"len": np.array([1, 2])}))
    column = Column.of([handle], [2])
    batch = Batch({"row_key": np.arange(2, dtype=np.uint64)}, {"ids": column}, {"len": column})
    half = batch.take([1])
    assert (handle.gets, handle.tables) == (0, 0)
    assert half["len"].tolist() == [2]
    assert (handle.gets, handle.tables) == (0, 1)
    assert half.tokens("ids").values.tolist() == [2]
    assert handle.gets == 1


@given(order=st.permutations(range(6)))
def test_join_aligns_by_key_and_not_by_position(order):
    batch = make([0, 0, 1, 1, 2, 2])
    other = Batch(
        {"row_key": batch["row_key"][list(order)], "x": np.array(order)},
    )
    assert batch.join(other)["x"].tolist() == list(range(6))


def test_join_refuses_missing_rows():
    batch = make([0, 1])
    with pytest.raises(ValueError, match="1 of 2 rows"):
        batch.join(batch.take([0]))


def test_join_replaces_whatever_kind_of_column():
    batch = make([0, 1])
    column = Column.of([Ready(RowBlock({"ids": Ragged.from_rows([[7], [8]])}))], [2])
    joined = batch.join(Batch({"row_key": batch["row_key"]}, {"ids": column}))
    assert joined.tokens("ids").values.tolist() == [7, 8]
    as_sample = batch.join(Batch({"row_key": batch["row_key"], "ids": np.array([1, 2])}))
    assert "ids" not in as_sample.columns
    assert as_sample["ids"].tolist() == [1, 2]


def test_concat_of_batches_keeps_rows_and_tokens():
    one, two = make([0, 1]), make([2, 3, 4])
    both = Batch.concat([one, two])
    assert both["group_uid"].tolist() == ["g0", "g1", "g2", "g3", "g4"]
    assert both.tokens("ids").lengths.tolist() == [1, 2, 1, 2, 3]
    assert both.take([4]).tokens("ids").values.tolist() == [2, 2, 2]


@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=7),
    n=st.integers(1, 7),
    epochs=st.integers(1, 3),
    seed=st.integers(0, 99),
)
def test_minibatches_hold_whole_groups_once_an_epoch(sizes, n, epochs, seed):
    groups = [g for g, size in enumerate(sizes) for _ in range(size)]
    batch = make(groups)
    if n > len(sizes):
        with pytest.raises(ValueError, match="mini-batches cannot be cut"):
            list(batch.minibatches(n, epochs=epochs, seed=seed))
        return
    cut = list(batch.minibatches(n, epochs=epochs, seed=seed))
    assert len(cut) == n * epochs
    for epoch in range(epochs):
        mine = cut[epoch * n : (epoch + 1) * n]
        keys = np.concatenate([m["row_key"] for m in mine])
        assert sorted(keys.tolist()) == sorted(batch["row_key"].tolist())
        seen = [set(m["group_uid"]) for m in mine]
        assert sum(len(s) for s in seen) == len(sizes)
    again = list(batch.minibatches(n, epochs=epochs, seed=seed))
    assert all((a["row_key"] == b["row_key"]).all() for a, b in zip(cut, again, strict=True))


def test_baseline_rows_are_not_trained_on():
    batch = make([0, 0, 1]).with_columns(trainable=np.array([True, False, True]))
    (only,) = batch.minibatches(1)
    assert len(only) == 2
    assert len(batch.groups()[0]) == 2


@given(data=st.data(), n=st.integers(1, 8))
def test_a_shipment_brings_the_rows_that_were_asked_for(data, n):
    batch = Batch.concat([make(list(range(n))), make(list(range(n, n + 3)))])
    index = data.draw(st.lists(st.integers(0, n + 2), min_size=1, max_size=9))
    block = ship(batch, np.array(index), ["ids"], ["group_uid"]).block()
    expected = batch.tokens("ids").take(index)
    np.testing.assert_array_equal(block.tokens["ids"].values, expected.values)
    assert block.table["group_uid"].tolist() == batch["group_uid"][index].tolist()


def test_a_shipment_carries_only_needed_rows_of_local_blocks():
    shipped = ship(make(list(range(50))), np.array([3, 3, 4]), ["ids"])
    (handle,) = shipped.columns["ids"].handles
    assert len(handle.get()) == 2


def test_row_keys_are_stable_and_distinct():
    assert row_key("a", 1) == row_key("a", 1)
    assert len({row_key(a, b) for a in ("a", "b", "ab") for b in range(50)}) == 150
