"""Options of supervised fine-tuning."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from bestiary.protocols import AlgorithmOptions, Role


@dataclass(frozen=True, kw_only=True, slots=True)
class SFTOptions(AlgorithmOptions):
    """Maximum likelihood of the task's targets, prompts masked."""

    components: ClassVar[dict[str, str]] = {"loss": "nll"}
    trains_from: ClassVar[Literal["rollouts", "targets"]] = "targets"

    prompts: int = 128
    """Problems in each optimizer step."""

    def roles(self) -> tuple[Role, ...]:
        """The trained model, and a scorer for the held-out problems."""
        return (Role("actor"), Role("reward", frozen=True))
