"""Row weights agree with the public op on padded tensors and add up over splits."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bestiary.ops.weights import loss_weights
from bestiary.roles.row_weights import row_weights

MODES = ["token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean"]


@pytest.mark.parametrize("mode", MODES)
@given(lens=st.lists(st.integers(0, 7), min_size=1, max_size=8))
@settings(max_examples=40, deadline=None)
def test_agrees_with_the_public_op(mode, lens):
    lens = np.array(lens)
    mask = torch.arange(7)[None, :] < torch.from_numpy(lens)[:, None]
    expected = loss_weights(mask, mode=mode).double().numpy()
    mine = row_weights(lens, mode)[:, None] * mask.numpy()
    np.testing.assert_allclose(mine, expected, rtol=1e-6)


def test_hand_computed():
    lens = np.array([2, 5])
    np.testing.assert_allclose(row_weights(lens, "token-mean"), [1 / 7, 1 / 7])
    np.testing.assert_allclose(row_weights(lens, "seq-mean-token-mean"), [1 / 4, 1 / 10])
    np.testing.assert_allclose(
        row_weights(lens, "seq-mean-token-sum-norm", length_norm=10), [1 / 20, 1 / 20]
    )


def test_invalid_and_empty_rows_leave_the_counts():
    weights = row_weights(np.array([2, 3, 0]), "token-mean", valid=np.array([True, False, True]))
    np.testing.assert_allclose(weights, [0.5, 0.0, 0.0])
    assert not row_weights(np.array([2]), "token-mean", valid=np.array([False])).any()


def test_norm_needs_its_length():
    with pytest.raises(ValueError, match="length_norm"):
        row_weights(np.array([2]), "seq-mean-token-sum-norm")
