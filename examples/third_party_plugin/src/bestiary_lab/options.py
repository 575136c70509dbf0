"""Options of the components; no torch, so that they can be checked without it."""

from dataclasses import dataclass
from typing import ClassVar

from bestiary.protocols import AlgorithmOptions, Role, Sampling


@dataclass(frozen=True, kw_only=True, slots=True)
class ReinforceOptions(AlgorithmOptions):
    """REINFORCE with the group's median as baseline."""

    components: ClassVar[dict[str, str]] = {"advantage": "lab_median", "loss": "clip"}
    samples: int = 8
    """Responses for each prompt."""

    def roles(self) -> tuple[Role, ...]:
        """The model that is trained, and what scores its responses."""
        return (Role("actor"), Role("reward", frozen=True))

    def samplings(self) -> tuple[Sampling, ...]:
        """One engine call draws all samples of a prompt."""
        return (Sampling(n=self.samples),)


@dataclass(frozen=True, kw_only=True, slots=True)
class HardestOptions:
    """Share ``hard`` of the prompts is chosen by pass rate; the others come in turn."""

    hard: float = 0.5
