"""Token rewards: the reward at the end, process rewards, the KL."""

import pytest
import torch

from bestiary.batch import Rows
from bestiary.kit import shaped_rewards

MASK = torch.tensor([[True, True, True], [True, True, False], [True, False, False]])
OLD = torch.tensor([[-1.0, -2.0, -3.0], [-1.0, -1.0, 9.0], [-0.5, 9.0, 9.0]])
REF = torch.tensor([[-1.5, -2.0, -2.0], [-2.0, -0.5, 7.0], [-0.5, 7.0, 7.0]])


def rows(**columns):
    valid = torch.tensor([True, True, False])
    given = {"reward": torch.tensor([1.0, 2.0, 3.0]), "valid": valid, **columns}
    return Rows(given, MASK)


def test_the_reward_stands_on_the_last_token_and_invalid_rows_have_none():
    got, stats = shaped_rewards(rows(), {})
    assert got.tolist() == [[0, 0, 1], [0, 2, 0], [0, 0, 0]]
    assert got.dtype == torch.float64
    assert stats == {}


def test_the_kl_is_taken_off_each_token_by_hand():
    x = rows(old_logprobs=OLD, ref_logprobs=REF)
    got, stats = shaped_rewards(x, {"kl_coef": 0.5, "kl_kind": "k1"})
    # k1 = old - ref: row 0: 0.5, 0, -1; row 1: 1, -0.5
    assert got.tolist() == [[-0.25, 0.0, 1.5], [-0.5, 2.25, 0.0], [0, 0, 0]]
    assert (stats["kl/reward"].total, stats["kl/reward"].count) == (0.0, 5.0)


def test_a_cost_has_the_opposite_sign():
    x = rows(old_logprobs=OLD, ref_logprobs=REF, cost=torch.tensor([1.0, 0.0, 0.0]))
    scalars = {"kl_coef": 0.5, "kl_kind": "k1"}
    got, _ = shaped_rewards(x, scalars, column="cost", sign=1.0)
    assert got.tolist() == [[0.25, 0.0, 0.5], [0.5, -0.25, 0.0], [0, 0, 0]]


def test_without_old_logprobs_the_engines_own_are_compared():
    both = {"ref_logprobs": REF, "rollout_logprobs": OLD}
    scalars = {"kl_coef": 1.0, "kl_kind": "k2"}
    got, _ = shaped_rewards(rows(**both), scalars)
    same, _ = shaped_rewards(rows(ref_logprobs=REF, old_logprobs=OLD), scalars)
    assert torch.equal(got, same)


def test_process_rewards_come_on_top_and_only_to_the_reward():
    steps = torch.tensor([[0.5, 0.0, 9.0], [0.0, 0.25, 9.0], [1.0, 0.0, 0.0]])
    x = rows(token_rewards=steps, cost=torch.tensor([1.0, 1.0, 1.0]))
    got, _ = shaped_rewards(x, {})
    assert got.tolist() == [[0.5, 0, 10.0], [0, 2.25, 0], [0, 0, 0]]
    cost, _ = shaped_rewards(x, {}, column="cost")
    assert cost.tolist() == [[0, 0, 1], [0, 1, 0], [0, 0, 0]]


def test_a_kl_without_a_reference_is_an_error():
    with pytest.raises(KeyError, match="ref_logprobs"):
        shaped_rewards(rows(old_logprobs=OLD), {"kl_coef": 0.1, "kl_kind": "k1"})
