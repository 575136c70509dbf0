"""Every component of every installed member keeps its contract: none can be forgotten."""

import pytest

from bestiary.plugins.manager import load_plugins
from bestiary.testing import SUITES

REGISTRY = load_plugins().registry

GIVEN = {
    ("reward", "sum"): {"options": {"of": ("exact_match",)}},
    ("reward", "custom"): None,  # a file of the user's: tests/rewards
    ("reward", "classifier"): None,  # a model of the user's: tests/scorers
    ("reward", "pattern"): {"options": {"pattern": "[0-9]"}},
    ("reward", "overlong"): {"options": {"limit": 64, "buffer": 8}},
    ("reward", "reasoning_gym"): None,  # scores entries of its own datasets: tests/tasks
    ("task", "jsonl"): None,  # a file of the user's: tests/data
    ("advantage", "remax"): {"scalars": {"kl_coef": 0.1, "kl_kind": "k1"}},
    ("advantage", "lagrangian"): {"scalars": {"lam": 0.5}},
    ("advantage", "reinforce_pp"): {"scalars": {"kl_coef": 0.1, "kl_kind": "k1"}},
    ("sampler", "prioritised"): {"options": {"by": "td_error"}},
    ("algorithm", "remax"): {"words": ("algorithm.samples=2",)},
    ("algorithm", "cost_model"): {"words": ("task.by=cost",)},
    ("algorithm", "raft"): {"words": ("algorithm.threshold=0.1",)},
    ("algorithm", "safe_rlhf"): {
        "words": ("algorithm.ptx_coef=0.1", "algorithm.kl.coef=0.1", "algorithm.minibatches=2")
    },
    ("algorithm", "ppo"): {"words": ("algorithm.kl.coef=0.1", "algorithm.minibatches=2")},
}
"""What a component needs beyond its defaults; None where it cannot work without the user's."""


def _classes():
    for kind, suite in SUITES.items():
        for name in REGISTRY.names(kind):
            given = GIVEN.get((kind, name), {})
            if given is not None:
                yield f"Test_{kind}_{name}", suite, {"component": name, **given}


for _name, _suite, _values in _classes():
    globals()[_name] = type(_name, (_suite,), _values)


def test_the_exceptions_are_components_that_exist():
    for kind, name in GIVEN:
        assert name in REGISTRY.names(kind), f"{kind}/{name} is gone; remove it from GIVEN"


@pytest.mark.parametrize("kind", SUITES)
def test_there_is_something_of_each_kind(kind):
    assert REGISTRY.names(kind)
