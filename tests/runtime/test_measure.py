"""Numbers of a step, from its sample table."""

import numpy as np
import pytest

from bestiary.batch import Batch
from bestiary.runtime.measure import batch_metrics, other_time, staleness, tokens_of


def batch(**changes):
    """Two groups of three responses and a baseline row."""
    group = np.array(["a"] * 3 + ["b"] * 3 + ["b"], dtype=object)
    table = {
        "row_key": np.arange(7, dtype=np.uint64),
        "group_uid": group,
        "trainable": np.array([True] * 6 + [False]),
        "reward": np.array([1.0, 0.0, 0.5, 1.0, 1.0, 9.0, 100.0]),
        "valid": np.array([True, True, True, True, True, False, True]),
        "truncated": np.array([False, True, False, False, False, True, True]),
        "response_len": np.array([1, 2, 3, 4, 5, 6, 50]),
        "prompt_len": np.array([10] * 7),
        "version_min": np.array([3, 3, 2, 3, 3, 3, 3]),
    }
    return Batch({**table, **changes})


def test_trained_rows_only_and_invalid_rewards_stay_out():
    found = batch_metrics(batch())
    assert found["response_len/mean"] == 3.5
    assert found["response_len/max"] == 6
    assert found["truncated/fraction"] == pytest.approx(2 / 6)
    assert found["valid/fraction"] == pytest.approx(5 / 6)
    assert found["reward/mean"] == pytest.approx(0.7)
    assert found["reward/std"] == pytest.approx(np.std([1, 0, 0.5, 1, 1]))
    assert found["groups/zero_variance"] == 0.5  # b: its third reward is invalid


def test_rew_04_nothing_valid_is_not_a_number_and_no_error():
    found = batch_metrics(batch(valid=np.zeros(7, dtype=bool)))
    assert np.isnan(found["reward/mean"])
    assert found["valid/fraction"] == 0.0
    assert found["groups/zero_variance"] == 1.0


def test_supervised_rows_have_no_reward():
    found = batch_metrics(batch().without("reward", "truncated", "valid"))
    assert set(found) == {"response_len/mean", "response_len/max"}


def test_tokens_count_every_row():
    assert tokens_of(batch()) == (70 + 71, 71)


def test_staleness_is_that_of_the_oldest_token():
    assert staleness(batch(), 5) == 3.0
    assert staleness(batch().without("version_min"), 5) == 0.0


def test_other_time_is_what_no_phase_accounts_for():
    metrics = {"time/rollout_s": 1.0, "time/update_s": 2.0, "time/eval_s": 50.0}
    assert other_time(metrics, 4.0) == 1.0
    assert other_time(metrics, 2.0) == 0.0
