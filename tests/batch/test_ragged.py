"""Ragged columns and blocks."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bestiary.batch import Ragged, RowBlock

ROWS = st.lists(st.lists(st.integers(-5, 5), max_size=6), min_size=1, max_size=8)


@given(rows=ROWS, data=st.data())
def test_take_is_the_same_as_indexing_rows(rows, data):
    index = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=10))
    taken = Ragged.from_rows(rows, dtype=np.int64).take(index)
    assert [taken.row(i).tolist() for i in range(len(taken))] == [rows[i] for i in index]


@given(rows=ROWS)
def test_padding_and_its_inverse(rows):
    column = Ragged.from_rows(rows, dtype=np.int64)
    back = Ragged.from_padded(column.padded(fill=99), column.lengths)
    np.testing.assert_array_equal(back.values, column.values)
    np.testing.assert_array_equal(back.offsets, column.offsets)


@given(first=ROWS, second=ROWS)
def test_concat_keeps_every_row(first, second):
    both = Ragged.concat([Ragged.from_rows(r, dtype=np.int64) for r in (first, second)])
    assert [both.row(i).tolist() for i in range(len(both))] == first + second


def test_padded_by_hand():
    column = Ragged.from_rows([[1, 2], [], [3]], dtype=np.int64)
    np.testing.assert_array_equal(column.padded(), [[1, 2], [0, 0], [3, 0]])
    np.testing.assert_array_equal(column.padded(width=3, fill=-1)[1], [-1, -1, -1])


def test_wrong_offsets_are_refused():
    with pytest.raises(ValueError, match="offsets run from 0 to 3"):
        Ragged(np.arange(2), np.array([0, 3]))


def test_columns_of_a_block_have_the_same_rows():
    with pytest.raises(ValueError, match="different numbers of rows"):
        RowBlock({"a": Ragged.from_rows([[1]])}, {"b": np.zeros(2)})
