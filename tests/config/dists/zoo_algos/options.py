"""Options of the test algorithms."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from bestiary.protocols import AdvantageOptions, AlgorithmOptions, LossOptions, Role, Sampling


@dataclass(frozen=True, kw_only=True, slots=True)
class GrpoOptions(AlgorithmOptions):
    """Group relative policy optimisation."""

    components: ClassVar[dict[str, str]] = {"advantage": "group", "loss": "clip"}

    samples: int = 8
    """Responses for each prompt."""
    kl_coef: float = 0.0
    """Weight of the KL."""

    def __post_init__(self):
        if self.samples < 2:
            raise ValueError(f"samples={self.samples}: a group needs at least 2 responses")

    def roles(self):
        return (Role("actor"), Role("reward", frozen=True))

    def samplings(self):
        return (Sampling(n=self.samples),)


@dataclass(frozen=True, kw_only=True, slots=True)
class RemaxOptions(AlgorithmOptions):
    components: ClassVar[dict[str, str]] = {"advantage": "greedy", "loss": "clip"}

    def roles(self):
        return (Role("actor"), Role("reward", frozen=True))

    def samplings(self):
        return (Sampling(n=1), Sampling(greedy=True, trainable=False, tag="baseline"))


@dataclass(frozen=True, kw_only=True, slots=True)
class SftOptions(AlgorithmOptions):
    components: ClassVar[dict[str, str]] = {"loss": "nll"}
    trains_from: ClassVar[Literal["rollouts", "targets"]] = "targets"


@dataclass(frozen=True, kw_only=True, slots=True)
class PrefixedGrpoOptions(GrpoOptions):
    components: ClassVar[dict[str, str]] = {"advantage": "zoo_group", "loss": "zoo_clip"}


@dataclass(frozen=True, kw_only=True, slots=True)
class PrefixedRemaxOptions(RemaxOptions):
    components: ClassVar[dict[str, str]] = {"advantage": "zoo_greedy", "loss": "zoo_clip"}


@dataclass(frozen=True, kw_only=True, slots=True)
class PrefixedSftOptions(SftOptions):
    components: ClassVar[dict[str, str]] = {"loss": "zoo_nll"}


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupOptions(AdvantageOptions):
    scale: Literal["std", "none"] = "std"


@dataclass(frozen=True, kw_only=True, slots=True)
class GreedyOptions(AdvantageOptions):
    requires: ClassVar[frozenset[str]] = frozenset({"reward", "baseline_reward"})


@dataclass(frozen=True, kw_only=True, slots=True)
class GaeOptions(AdvantageOptions):
    requires: ClassVar[frozenset[str]] = frozenset({"reward", "values"})
    lam: float = 0.95


@dataclass(frozen=True, kw_only=True, slots=True)
class ClipOptions(LossOptions):
    requires: ClassVar[frozenset[str]] = frozenset({"old_logprobs", "advantages"})
    clip_range: float = 0.2
    """Half-width of the clip."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NllOptions(LossOptions):
    pass
