"""One actor, reference, critic and scorer for all tests of the library: real worker processes."""

from types import SimpleNamespace

import pytest

import bestiary

TINY = "tiny:hidden=32,layers=2,heads=2"


def digits(samples):
    """The share of digits in each response; nothing for one without a token."""
    return [
        sum(c.isdigit() for c in s.response) / s.response_len if s.response_len else None
        for s in samples
    ]


@pytest.fixture(scope="session")
def lab():
    """The objects; two models share the processes of one pool, the critic has its own."""
    bestiary.setup(seed=3)
    pool = bestiary.ResourcePool(devices=["cpu:0", "cpu:1"], name="policy")
    shard = {"fsdp": "full_shard"}
    made = SimpleNamespace(
        pool=pool,
        actor=bestiary.Actor(TINY, parallel_config=shard, resource_pool=pool, lr=1e-3),
        reference=bestiary.ReferencePolicy(TINY, parallel_config=shard, resource_pool=pool),
        critic=bestiary.Critic(
            TINY, resource_pool=bestiary.ResourcePool(devices=["cpu:2"], name="values"), lr=1e-3
        ),
        reward=bestiary.RewardModel(digits),
    )
    yield made
    bestiary.shutdown()
