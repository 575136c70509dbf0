"""Conformance suites for plugins: a member's test class derives from one and names its component.

    from bestiary.testing import EstimatorSuite

    class TestMine(EstimatorSuite):
        component = "mine"

The component is found by its registered name, so the plugin has to be installed. Only tests import
this package.
"""

import pytest

_HELPERS = ("suite", "watch", "algorithms", "engines", "estimators", "losses", "rewards")
# A failed assertion then shows its values, as in the test files themselves.
pytest.register_assert_rewrite(
    *(f"bestiary.testing.{name}" for name in (*_HELPERS, "samplers", "trackers"))
)

from bestiary.testing.algorithms import AlgorithmSuite  # noqa: E402 - after the registration
from bestiary.testing.data import example_groups, example_rows, fake_prompts, tiny_model  # noqa: E402
from bestiary.testing.engines import RolloutEngineSuite, TrainEngineSuite  # noqa: E402
from bestiary.testing.estimators import CorrectionSuite, EstimatorSuite  # noqa: E402
from bestiary.testing.losses import LossSuite  # noqa: E402
from bestiary.testing.rewards import RewardSuite, TaskSuite  # noqa: E402
from bestiary.testing.samplers import SamplerSuite  # noqa: E402
from bestiary.testing.trackers import TrackerSuite  # noqa: E402

SUITES = {
    "algorithm": AlgorithmSuite,
    "advantage": EstimatorSuite,
    "correction": CorrectionSuite,
    "loss": LossSuite,
    "sampler": SamplerSuite,
    "reward": RewardSuite,
    "task": TaskSuite,
    "rollout_engine": RolloutEngineSuite,
    "train_engine": TrainEngineSuite,
    "tracker": TrackerSuite,
}
"""The suite of each kind of component that has one."""

__all__ = [
    "SUITES",
    "AlgorithmSuite",
    "CorrectionSuite",
    "EstimatorSuite",
    "LossSuite",
    "RewardSuite",
    "RolloutEngineSuite",
    "SamplerSuite",
    "TaskSuite",
    "TrackerSuite",
    "TrainEngineSuite",
    "example_groups",
    "example_rows",
    "fake_prompts",
    "tiny_model",
]
