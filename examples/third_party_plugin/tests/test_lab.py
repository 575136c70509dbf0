"""The plugin by itself: what its estimator computes and what its sampler hands out."""

import numpy as np
import pytest
import torch
from bestiary_lab.learning import Median, Reinforce
from bestiary_lab.options import HardestOptions, ReinforceOptions
from bestiary_lab.sampler import Hardest

from bestiary.batch import Batch, Rows
from bestiary.protocols import AdvantageOptions


def advantages(rewards, groups, valid):
    columns = {
        "reward": torch.tensor(rewards),
        "group": torch.tensor(groups),
        "valid": torch.tensor(valid),
    }
    rows = Rows(columns, torch.ones(len(rewards), 1, dtype=torch.bool))
    return Median(AdvantageOptions())(rows, reduce=None)["advantages"].tolist()


def test_the_median_of_each_group_is_subtracted():
    got = advantages([1.0, 0.0, 5.0, 2.0, 4.0], [0, 0, 0, 1, 1], [True] * 5)
    assert got == [0.0, -1.0, 4.0, -1.0, 1.0]


def test_an_invalid_sample_gets_zero_and_does_not_move_the_median():
    got = advantages(
        [1.0, float("nan"), 3.0, float("nan")], [0, 0, 0, 1], [True, False, True, False]
    )
    assert got == [-1.0, 0.0, 1.0, 0.0]


class Source:
    """Hands out batches that name their prompts."""

    uids = ("a", "b", "c", "d")

    def __len__(self):
        return len(self.uids)

    def hand_out(self, indices):
        index = np.array(indices, dtype=np.int64)
        return Batch({"row_key": index.astype(np.uint64), "uid": np.array(self.uids)[index]})


def scored(rewards):
    uids = [uid for uid, values in rewards.items() for _ in values]
    values = [value for values in rewards.values() for value in values]
    return Batch(
        {
            "row_key": np.arange(len(uids), dtype=np.uint64),
            "uid": np.array(uids),
            "group_uid": np.array(uids),
            "reward": np.array(values),
            "valid": np.isfinite(values),
        }
    )


def test_prompts_come_in_turn_until_rewards_are_known():
    sampler = Hardest(HardestOptions(), Source())
    assert list(sampler.draw(3)["uid"]) == ["a", "b", "c"]
    assert list(sampler.draw(3)["uid"]) == ["d", "a", "b"]


def test_the_lowest_mean_rewards_come_first():
    sampler = Hardest(HardestOptions(hard=0.5), Source())
    sampler.observe(scored({"a": [1.0, 1.0], "b": [0.0, 1.0], "c": [0.0, 0.0, float("nan")]}))
    assert list(sampler.draw(4)["uid"]) == ["c", "b", "a", "b"]


def test_a_saved_sampler_goes_on_where_it_was():
    first = Hardest(HardestOptions(), Source())
    first.draw(3)
    first.observe(scored({"b": [0.0], "d": [1.0]}))
    second = Hardest(HardestOptions(), Source())
    second.load_state_dict(first.state_dict())
    assert list(second.draw(4)["uid"]) == list(first.draw(4)["uid"]) == ["b", "d", "d", "a"]


def test_the_algorithm_steps_once_on_the_estimators_advantages():
    calls = []

    class Handle:
        def update(self, batch, *terms):
            calls.append((batch["advantages"].tolist(), [term.loss for term in terms]))

    algorithm = Reinforce(ReinforceOptions(samples=2), seed=0)
    algorithm.actor, algorithm.loss = Handle(), "clip"
    algorithm.advantage = lambda batch: Batch(
        {"row_key": batch["row_key"], "advantages": np.array([0.5, -0.5])}
    )
    algorithm.metrics = lambda: {"grad_norm": 1.0}
    assert algorithm.learn(scored({"a": [1.0, 0.0]})) == {"grad_norm": 1.0}
    assert calls == [([0.5, -0.5], ["clip"])]


def test_options_state_roles_and_samples_without_torch():
    options = ReinforceOptions(samples=3)
    assert [role.name for role in options.roles()] == ["actor", "reward"]
    assert [sampling.n for sampling in options.samplings()] == [3]
    with pytest.raises(AttributeError):
        options.samples = 4
