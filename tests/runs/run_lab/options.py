"""Options of the test components: light."""

from dataclasses import dataclass
from typing import ClassVar

from bestiary.protocols import AdvantageOptions, AlgorithmOptions, LossOptions, Role, Sampling


@dataclass(frozen=True, kw_only=True, slots=True)
class AdaptiveOptions(AlgorithmOptions):
    """Group-relative learning under an adaptive KL coefficient."""

    components: ClassVar[dict[str, str]] = {"advantage": "group", "loss": "clip"}
    samples: int = 4
    init: float = 0.2
    target: float = 0.1
    horizon: int = 64

    def roles(self):
        return (Role("actor"), Role("reference", frozen=True), Role("reward", frozen=True))

    def samplings(self):
        return (Sampling(n=self.samples),)

    def provides(self):
        return frozenset({"ref_logprobs"})


@dataclass(frozen=True, kw_only=True, slots=True)
class MeanSampleOptions(AdvantageOptions):
    """Reward minus the mean of its group, on the controller."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MeanGroupOptions(AdvantageOptions):
    """The same on the shards, which hold whole groups."""

    scope: ClassVar[str] = "group"


@dataclass(frozen=True, kw_only=True, slots=True)
class MeanRowOptions(AdvantageOptions):
    """Reward minus the mean over all rows of all shards."""

    scope: ClassVar[str] = "row"


@dataclass(frozen=True, kw_only=True, slots=True)
class PerTokenOptions(AdvantageOptions):
    """Reward times the position of the token; reads a token column."""

    scope: ClassVar[str] = "row"
    requires: ClassVar[frozenset[str]] = frozenset({"reward", "rollout_logprobs"})


@dataclass(frozen=True, kw_only=True, slots=True)
class NaNOptions(LossOptions):
    """A loss that is not finite."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SlowOptions(LossOptions):
    """The clipped surrogate's columns, and time to be interrupted in."""

    requires: ClassVar[frozenset[str]] = frozenset({"old_logprobs", "advantages"})
    seconds: float = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class CallsOptions:
    """Writes down what a tracker is told."""

    path: str = ""
