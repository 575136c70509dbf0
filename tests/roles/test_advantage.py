"""Estimators where their scope says: on the controller, on shards, on shards of whole groups."""

from types import SimpleNamespace

import numpy as np
import pytest
from role_parts import Bench, FakeGroup, prompts

from bestiary.batch import Ragged
from bestiary.distributed.handles import LocalBlock
from bestiary.engines.engine_api import Ranks
from bestiary.errors import AlgorithmError
from bestiary.protocols import ComponentRef, Sampling
from bestiary.roles.advantage import AdvantageRole
from bestiary.runtime.components import Components
from bestiary.runtime.worker import ModelWorker
from bestiary.testing.ranks import run_ranks

WORLDS = (1, 2, 3)
GREEDY = Sampling(tag="baseline", greedy=True, trainable=False)


class Shards(FakeGroup):
    """Runs the worker's own ``estimate`` on ``size`` processes of a gloo group."""

    def __init__(self, size, components):
        self.world, self.components = size, components
        self.rows = []

    @property
    def size(self):
        return self.world

    def call(self, method, per_rank):
        self.rows = [call[1] for call in per_rank]

        def one(rank, world):
            worker = SimpleNamespace(components=self.components, ranks=Ranks(rank, world))
            return getattr(ModelWorker, method)(worker, *per_rank[rank])

        return [LocalBlock(*answer) for answer in run_ranks(self.world, one)]


@pytest.fixture(scope="module")
def components(lab):
    return Components(lab)


def role(components, name, world):
    ref = ComponentRef("advantage", name)
    group = Shards(world, components)
    services = Bench(1, components).services
    options = components.options(ref)
    return AdvantageRole(
        ref, components.build(ref), options, group, services, components.owner(ref)
    )


THREE = Sampling(n=3)


def scored(components, samplings=THREE, groups=2, **options):
    bench = Bench(1, components, **options)
    batch = bench.actor.generate(prompts(groups), samplings)
    return batch.join(bench.reward.score(batch))


def per_token(made):
    """The advantages of each row at each of its tokens, whatever the scope."""
    return made.tokens("advantages")


def by_hand(batch):
    """Reward minus the mean of the valid trained rows of its group, in float64."""
    out = np.zeros(len(batch))
    counted = batch["valid"].astype(bool) & batch["trainable"].astype(bool)
    for uid in set(batch["group_uid"]):
        rows = counted & (batch["group_uid"] == uid)
        if rows.any():
            out[rows] = batch["reward"][rows] - batch["reward"][rows].mean()
    return out


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("groups", [1, 2, 5])
def test_scopes_sample_and_group_agree_and_groups_stay_whole(components, world, groups):
    batch = scored(components, groups=groups, invalid=range(0, 1000, 4))
    sample = role(components, "lab_mean_sample", world)(batch)
    shards = role(components, "lab_mean_group", world)
    made = per_token(shards(batch))
    assert sample["advantages"].tolist() == by_hand(batch).tolist()
    assert made.lengths.tolist() == batch["response_len"].tolist()
    assert made.values.tolist() == np.repeat(by_hand(batch), made.lengths).tolist()
    seen = [set(shipment.table["group"].tolist()) for shipment in shards.group.rows]
    assert sum(map(len, seen)) == groups  # no group is on two ranks
    assert sum(len(s.table["group"]) for s in shards.group.rows) == len(batch)


@pytest.mark.parametrize("world", WORLDS)
def test_scope_row_has_global_statistics_for_any_number_of_ranks(components, world):
    batch = scored(components, groups=1, invalid=range(0, 1000, 4))
    made = per_token(role(components, "lab_mean_row", world)(batch))
    assert made.values == pytest.approx(np.repeat(by_hand(batch), made.lengths), abs=1e-12)


@pytest.mark.parametrize("world", WORLDS)
def test_an_estimator_may_read_and_make_token_columns(components, world):
    batch = scored(components, groups=1)
    made = per_token(role(components, "lab_per_token", world)(batch))
    ids = batch.tokens("response_ids")
    wanted = [
        batch["reward"][i] * t - float(token)
        for i in range(len(batch))
        for t, token in enumerate(ids.row(i))
    ]
    assert made.values == pytest.approx(wanted)


@pytest.mark.parametrize("name", ["lab_mean_sample", "lab_mean_group", "lab_mean_row"])
def test_math_19_baseline_rows_are_not_in_the_statistics_and_get_zero(components, name):
    both = scored(components, [Sampling(n=3), GREEDY])
    alone = scored(components, [Sampling(n=3)])
    made = both.join(role(components, name, 2)(both))
    lone = alone.join(role(components, name, 2)(alone))

    def values(batch):
        if "advantages" in batch.columns:
            return [float(batch.tokens("advantages").row(i)[0]) for i in range(len(batch))]
        return batch["advantages"].tolist()

    kept = [a for a, tag in zip(values(made), made["tag"], strict=True) if tag == "sample"]
    rest = [a for a, tag in zip(values(made), made["tag"], strict=True) if tag == "baseline"]
    assert kept == pytest.approx(values(lone), abs=1e-12)
    assert rest == [0.0, 0.0]


def test_async_03_groups_are_ids_whatever_the_order_of_arrival(components):
    batch = scored(components, groups=3)
    order = np.array([5, 0, 3, 8, 1, 4, 7, 2, 6])
    for name, world in (("lab_mean_sample", 1), ("lab_mean_group", 2), ("group", 1)):
        straight = role(components, name, world)(batch)
        mixed = role(components, name, world)(batch.take(order))
        back = batch.join(mixed)
        if "advantages" in straight.columns:
            assert back.tokens("advantages").values.tolist() == (
                straight.tokens("advantages").values.tolist()
            )
        else:
            assert back["advantages"].tolist() == straight["advantages"].tolist()


def test_async_03_groups_of_equal_rewards_get_zero(components):
    batch = scored(components, groups=2).with_columns(reward=np.array([0.0, 0, 0, 1, 1, 1]))
    order = [5, 0, 3, 1, 4, 2]
    made = role(components, "lab_mean_sample", 1)(batch.take(order))
    assert made["advantages"].tolist() == [0.0] * 6
    assert role(components, "group", 1)(batch.take(order))["advantages"].tolist() == [0.0] * 6


def test_rew_04_the_valid_samples_alone_make_the_statistics(components):
    batch = scored(components, [Sampling(n=4)], groups=1).with_columns(
        reward=np.array([1.0, 0.0, 0.0, 1.0]), valid=np.array([True, True, False, True])
    )
    made = role(components, "group", 1)(batch)["advantages"]
    assert made == pytest.approx([0.577349269191, -1.15469853838, 0.0, 0.577349269191], abs=2e-6)


def test_a_sample_that_another_scorer_could_not_score_stays_out(components):
    batch = scored(components, [Sampling(n=3)], groups=1).with_columns(
        reward=np.array([1.0, 0.0, 5.0]), valid_cost=np.array([True, True, False])
    )
    assert role(components, "lab_mean_sample", 1)(batch)["advantages"].tolist() == [0.5, -0.5, 0]
    made = per_token(role(components, "lab_mean_group", 2)(batch))
    assert [float(made.row(i)[0]) for i in range(3)] == [0.5, -0.5, 0.0]


def test_math_19_a_missing_column_names_the_estimator_and_the_field(components):
    batch = scored(components).without("reward")
    with pytest.raises(AlgorithmError, match=r"lab_mean_sample needs the columns \['reward'\]"):
        role(components, "lab_mean_sample", 1)(batch)


def test_a_result_of_the_wrong_shape_names_its_owner_and_both_shapes(components):
    with pytest.raises(AlgorithmError, match=r"\(1,\); wanted \[6\]") as caught:
        role(components, "lab_wrong_shape", 1)(scored(components))
    assert "run-lab 1.0" in str(caught.value)


def test_data_06_empty_responses_are_dealt_with_in_every_scope(components):
    batch = scored(components, groups=2, empty=range(0, 1000, 2))
    assert 0 in batch["response_len"]
    for name in ("lab_mean_group", "lab_mean_row", "lab_per_token"):
        made = role(components, name, 2)(batch).tokens("advantages")
        assert isinstance(made, Ragged)
        assert made.lengths.tolist() == batch["response_len"].tolist()
        assert np.isfinite(made.values).all()
