"""Arithmetic on ragged columns against padded tensors of numpy."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bestiary.batch import Ragged, RowBlock
from bestiary.batch.expression import MASK, OPERATIONS, evaluate, names_in, reduce_rows


def block(lengths, seed=0):
    rng = np.random.default_rng(seed)
    n = int(sum(lengths))
    lengths = np.array(lengths, dtype=np.int64)
    return RowBlock(
        {
            "a": Ragged.from_lengths(rng.normal(size=n).astype(np.float32), lengths),
            "b": Ragged.from_lengths(rng.normal(size=n), lengths),
            MASK: Ragged.from_lengths(rng.random(n) < 0.7, lengths),
        },
        {"s": rng.normal(size=len(lengths))},
    )


@given(st.lists(st.integers(0, 5), min_size=1, max_size=6), st.integers(0, 99))
@settings(deadline=None)
def test_an_expression_is_that_of_padded_arrays(lengths, seed):
    x = block(lengths, seed)
    expression = ("add", ("multiply", ("token", "a"), ("sample", "s")), ("exp", ("token", "b")))
    a, b, mask = (x.tokens[n].padded().astype(float) for n in ("a", "b", MASK))
    wanted = a * x.table["s"][:, None] + np.exp(b)
    found = evaluate(expression, x)
    live = np.arange(a.shape[1])[None] < np.array(lengths)[:, None]
    np.testing.assert_allclose(found, wanted[live], rtol=1e-12)
    np.testing.assert_allclose(
        reduce_rows(found, x, "sum"), (wanted * mask * live).sum(1), atol=1e-9
    )
    counts = np.maximum((mask * live).sum(1), 1)
    np.testing.assert_allclose(
        reduce_rows(found, x, "mean"), (wanted * mask * live).sum(1) / counts, atol=1e-9
    )
    assert names_in(expression, "token") == {"a", "b"}
    assert names_in(expression, "sample") == {"s"}


def test_what_is_masked_is_not_read():
    x = block([2, 1])
    mask = Ragged.from_lengths(np.array([True, False, True]), np.array([2, 1]))
    x = RowBlock({**x.tokens, MASK: mask}, x.table)
    values = np.array([1.0, np.nan, 3.0])
    assert reduce_rows(values, x, "sum").tolist() == [1.0, 3.0]
    assert reduce_rows(values, x, "mean").tolist() == [1.0, 3.0]


def test_a_row_without_tokens_is_zero():
    x = block([0, 2])
    assert reduce_rows(np.ones(2), x, "mean")[0] == 0.0


def test_only_elementwise_operations_can_be_asked_for():
    with pytest.raises(ValueError, match="no operation 'eval'"):
        evaluate(("eval", ("number", 1)), block([1]))
    for name, function in OPERATIONS.items():
        if name in ("log", "power"):
            continue
        two = function.nin == 2
        parts = (("token", "a"), ("token", "b"))[: 1 + two]
        made = evaluate((name, *parts), block([3]))
        given = [block([3]).tokens[p[1]].values.astype(float) for p in parts]
        np.testing.assert_array_equal(made, function(*given))
