import numpy as np
import pytest

from bestiary.engines.local.streams import sample_key, uniforms


def test_keys_and_numbers_are_reproducible():
    key = sample_key(7, "rollout", "addition/12+34", 0, 3, 0)
    assert key == 4525075105646208989
    keys = np.array([0, 1, key], dtype=np.uint64)
    assert uniforms(keys, 0).tolist() == [
        0.8833108082136426,
        0.5665615751722809,
        0.5436679946364401,
    ]
    assert uniforms(keys, np.array([5, 6, 7])).tolist() == [
        0.32732576421812576,
        0.877348686764173,
        0.4814805665145654,
    ]


@pytest.mark.parametrize(
    "other",
    [
        (8, "rollout", "u", 0, 0, 0),
        (7, "eval", "u", 0, 0, 0),
        (7, "rollout", "v", 0, 0, 0),
        (7, "rollout", "u", 1, 0, 0),
        (7, "rollout", "u", 0, 1, 0),
        (7, "rollout", "u", 0, 0, 1),
    ],
)
def test_every_part_enters_the_key(other):
    assert sample_key(7, "rollout", "u", 0, 0, 0) != sample_key(*other)


def test_fields_of_the_key_do_not_run_together():
    assert sample_key(0, "a", "bc", 0, 0) != sample_key(0, "ab", "c", 0, 0)
    assert sample_key(0, "a", "b", 1, 12) != sample_key(0, "a", "b", 11, 2)


def test_numbers_depend_on_key_and_position_only():
    keys = np.array([sample_key(0, "r", str(i), 0, 0) for i in range(50)], dtype=np.uint64)
    together = uniforms(keys, 9)
    one_by_one = np.concatenate([uniforms(keys[i : i + 1], 9) for i in range(50)])
    assert np.array_equal(together, one_by_one)
    mixed = uniforms(keys, np.arange(50))
    assert all(mixed[i] == uniforms(keys, i)[i] for i in range(50))


@pytest.mark.parametrize("neighbours", [True, False])
def test_numbers_are_uniform_and_uncorrelated(neighbours):
    if neighbours:  # 0, 1, 2, …: the hardest keys for a counter-based generator
        keys = np.arange(2000, dtype=np.uint64)
    else:
        keys = np.array([sample_key(1, "r", "p", 0, j) for j in range(2000)], dtype=np.uint64)
    u = np.stack([uniforms(keys, t) for t in range(50)], axis=1)
    assert u.min() >= 0.0
    assert u.max() < 1.0
    counts = np.bincount((u.ravel() * 100).astype(int), minlength=100)
    chi2 = ((counts - 1000) ** 2 / 1000).sum()
    assert chi2 < 160  # 99 degrees of freedom: p = 1e-4
    centred = u - 0.5
    sd = (1 / 12) / np.sqrt(u.size)
    for shifted in (centred[1:], centred[:, 1:], centred[1:, 1:]):
        here = centred[: shifted.shape[0], : shifted.shape[1]]
        assert abs((here * shifted).mean()) < 4.5 * sd
