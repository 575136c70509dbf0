"""What algorithms decide on the controller, by hand."""

import math

import numpy as np
import pytest

from bestiary.batch import Batch
from bestiary_grpo.algorithm import overlong
from bestiary_preference.dpo import best_and_worst
from bestiary_raft.algorithm import best_rows
from bestiary_safe_rlhf.multiplier import Multiplier
from bestiary_safe_rlhf.options import SafeRLHFOptions


def scored(groups, rewards, valid=None, trainable=None):
    n = len(groups)
    every = np.ones(n, dtype=bool)
    return Batch(
        {
            "row_key": np.arange(n, dtype=np.uint64),
            "group_uid": np.array(list(groups), dtype=object),
            "reward": np.array(rewards, dtype=np.float64),
            "valid": every if valid is None else np.array(valid),
            "trainable": every if trainable is None else np.array(trainable),
        }
    )


def test_raft_keeps_the_best_of_each_group():
    batch = scored("aaabbb", [0, 1, 1, 3, 2, 1])
    assert best_rows(batch, 1, None).tolist() == [1, 3]
    assert best_rows(batch, 2, None).tolist() == [1, 2, 3, 4]
    assert best_rows(batch, 2, 2.0).tolist() == [3, 4]
    assert best_rows(batch, 1, 5.0).tolist() == []


def test_raft_never_takes_invalid_or_baseline_rows():
    batch = scored("aaa", [9, 8, 1], valid=[False, True, True], trainable=[True, False, True])
    assert best_rows(batch, 2, None).tolist() == [2]


def test_online_dpo_pairs_the_best_with_the_worst():
    batch = scored("aaabbbcc", [0, 2, 1, 5, 5, 5, 1, 3], valid=[True] * 7 + [False])
    rows, preferred = best_and_worst(batch)
    assert rows.tolist() == [1, 0]  # b is all equal, c has one valid row
    assert preferred.tolist() == [1.0, 0.0]


def test_the_overlong_ramp_of_dapo():
    got = overlong(np.array([0, 12, 16, 18, 20]), 20, 8)
    assert got.tolist() == [0.0, 0.0, 0.5, 0.75, 1.0]


# --------------------------------------------------------------------------- Safe RLHF


def options(**changes):
    return SafeRLHFOptions(**{"threshold": 0.5, "lambda_lr": 0.2, "window": 4, **changes})


def test_the_multiplier_by_hand():
    multiplier = Multiplier(options())
    found = multiplier.step([1.0, 0.0, 1.0, 1.0], step=1)
    # J_C = 0.75; ln λ = 0 + 0.2·1·0.25
    assert found == {
        "lagrange/lambda": pytest.approx(math.exp(0.05)),
        "lagrange/cost": 0.75,
        "lagrange/violation": 0.25,
    }
    found = multiplier.step([0.0, 0.0], step=2)  # the window is now 1, 1, 0, 0
    assert found["lagrange/cost"] == 0.5
    assert found["lagrange/lambda"] == pytest.approx(math.exp(0.05))


def test_the_multiplier_is_bounded_and_waits_for_its_warm_up():
    multiplier = Multiplier(options(lambda_max=1.1, lambda_warmup=1, lambda_lr=10.0))
    assert multiplier.step([9.0], step=1)["lagrange/lambda"] == 1.0
    assert multiplier.step([9.0], step=2)["lagrange/lambda"] == pytest.approx(1.1)
    for step in range(3, 60):
        multiplier.step([0.0] * 4, step)
    assert 0.0 < multiplier.value < 1.0


def test_the_multiplier_goes_on_where_it_was_saved():
    one = Multiplier(options())
    one.step([1.0, 0.25], step=1)
    other = Multiplier(options())
    other.load_state_dict(one.state_dict())
    assert one.step([0.75], step=2) == other.step([0.75], step=2)


def test_without_a_cost_the_multiplier_stays():
    multiplier = Multiplier(options())
    assert multiplier.step([], step=1) == {"lagrange/lambda": 1.0}


@pytest.mark.parametrize(
    "wrong",
    [
        {"lambda_init": 0.0},
        {"lambda_max": 0.5},
        {"window": 0},
        {"ptx_coef": -1.0},
        {"minibatches": 99},
    ],
)
def test_options_without_meaning_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        SafeRLHFOptions(**wrong)


def test_ptx_asks_for_supervised_data():
    assert SafeRLHFOptions().feeds() == {}
    assert SafeRLHFOptions(ptx_coef=0.1, ptx_task="addition").feeds() == {"ptx": "addition"}
