"""Which models share processes, for the roles of several algorithms."""

import pytest

from bestiary.distributed.options import ExplicitOptions, SplitOptions, StandaloneOptions
from bestiary.distributed.placement import PlacementRequest
from bestiary.distributed.strategies import Explicit, Split, Standalone
from bestiary.errors import PlacementError
from bestiary.protocols import Role

PPO = PlacementRequest(
    (
        Role("actor"), Role("reference", frozen=True), Role("critic"),
        Role("reward", frozen=True),
    )
)  # fmt: skip
GRPO = PlacementRequest((Role("actor"), Role("reference", frozen=True), Role("reward")))
SAFE = PlacementRequest(
    (
        Role("actor"), Role("reference", frozen=True), Role("critic"), Role("cost_critic"),
        Role("reward", frozen=True), Role("cost", frozen=True),
    )
)  # fmt: skip


def pools(placement):
    return {pool.name: (pool.roles, pool.workers) for pool in placement.pools}


def test_split_parts_policies_from_values():
    found = pools(Split(SplitOptions(workers=2, second_workers=3))(SAFE))
    assert found == {
        "first": (("actor", "reference"), 2),
        "second": (("critic", "cost_critic"), 3),
        "scorers": (("reward",), 1),
        "scorers-cost": (("cost",), 1),
    }


def test_split_without_values_parts_the_reference():
    found = pools(Split(SplitOptions())(GRPO))
    assert found["first"] == (("actor",), 1)
    assert found["second"] == (("reference",), 1)
    alone = PlacementRequest((Role("actor"), Role("reward")))
    with pytest.raises(PlacementError, match="needs two models; the roles actor are"):
        Split(SplitOptions())(alone)


def test_standalone_gives_each_model_a_pool():
    found = pools(Standalone(StandaloneOptions(workers=2, sizes={"critic": 4}))(PPO))
    assert found == {
        "actor": (("actor",), 2),
        "reference": (("reference",), 2),
        "critic": (("critic",), 4),
        "scorers": (("reward",), 1),
    }
    with pytest.raises(PlacementError, match=r"sizes names 'crtic' \(did you mean 'critic'"):
        Standalone(StandaloneOptions(sizes={"crtic": 1}))(PPO)


def test_views_of_one_model_are_not_parted():
    request = PlacementRequest(
        (Role("actor"), Role("reference", frozen=True, model="actor"), Role("critic"))
    )
    assert pools(Standalone(StandaloneOptions())(request))["actor"] == (("actor", "reference"), 1)
    assert pools(Split(SplitOptions())(request))["first"] == (("actor", "reference"), 1)


def explicit(pools, request=PPO, **options):
    return Explicit(ExplicitOptions(pools=pools, **options))(request)


def test_explicit_pools_are_as_they_are_written():
    found = explicit(
        {
            "policy": {"roles": ["actor", "reference"], "workers": 2, "threads": 3},
            "values": {"roles": ["critic"], "slots_per_core": 2},
        },
        nodes=2,
    )
    policy, values, scorers = found.pools
    assert (policy.roles, policy.workers, policy.threads, policy.nodes) == (
        ("actor", "reference"), 2, 3, 2,
    )  # fmt: skip
    assert (values.roles, values.workers, values.slots_per_core) == (("critic",), 1, 2)
    assert scorers.roles == ("reward",)
    own = explicit({"all": {"roles": ["actor", "reference", "critic"]}, "r": {"roles": ["reward"]}})
    assert [pool.name for pool in own.pools] == ["all", "r"]


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ({}, "without pools"),
        ({"a": 3}, "pools.a is 3; roles and workers"),
        ({"a": {"roles": "actor"}}, "a list of roles"),
        ({"a": {"workers": 1}}, "a list of roles"),
        ({"a": {"roles": ["actor"], "wokers": 2}}, r"'wokers' \(did you mean 'workers'"),
        ({"a": {"roles": ["actor"], "workers": 0}}, r"pools.a.workers=0"),
        ({"a": {"roles": ["actor"], "device": "tpu"}}, r"pools.a.device='tpu'"),
        ({"a": {"roles": ["acter"]}}, r"'acter' \(did you mean 'actor'"),
        ({"a": {"roles": ["actor"]}}, "leaves out reference, critic"),
        (
            {"a": {"roles": ["actor", "reference", "critic"]}, "b": {"roles": ["actor"]}},
            "role actor more than once",
        ),
    ],
)
def test_what_is_wrong_with_explicit_pools_is_named(written, message):
    with pytest.raises(PlacementError, match=message):
        explicit(written)


@pytest.mark.parametrize(
    ("kind", "options", "named"),
    [
        (SplitOptions, {"second_workers": 0}, "second_workers=0"),
        (StandaloneOptions, {"sizes": {"actor": 1.5}}, "sizes.actor=1.5"),
        (SplitOptions, {"nodes": -1}, "nodes=-1"),
        (SplitOptions, {"workers": True}, "workers=True"),
    ],
)
def test_options_out_of_range_are_refused(kind, options, named):
    with pytest.raises(ValueError, match=named):
        kind(**options)
