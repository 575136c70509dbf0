"""Options of learning from process rewards."""

from dataclasses import dataclass
from typing import ClassVar

from bestiary.protocols import AdvantageOptions, AlgorithmOptions, Role, Sampling, Scope


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessRewardOptions(AlgorithmOptions):
    """Each token is judged by the step rewards that are still to come."""

    components: ClassVar[dict[str, str]] = {
        "reward": "right_characters",
        "advantage": "steps_to_go",
        "loss": "clip",
    }

    samples: int = 8
    """Responses for each prompt."""

    def roles(self) -> tuple[Role, ...]:
        """The policy and the scorer of steps."""
        return (Role("actor"), Role("reward", frozen=True))

    def samplings(self) -> tuple[Sampling, ...]:
        """``samples`` responses for each prompt."""
        return (Sampling(n=self.samples),)


@dataclass(frozen=True, kw_only=True, slots=True)
class StepsToGoOptions(AdvantageOptions):
    """Step rewards to go, against the group's mean at the same token."""

    scope: ClassVar[Scope] = "group"
    requires: ClassVar[frozenset[str]] = frozenset({"token_rewards"})
