"""Options of VinePPO."""

from dataclasses import dataclass
from typing import ClassVar

from bestiary.protocols import AlgorithmOptions, Role, Sampling


@dataclass(frozen=True, kw_only=True, slots=True)
class VineOptions(AlgorithmOptions):
    """Values of states by Monte-Carlo continuations (Kazemnejad et al. 2024, arXiv:2410.01679)."""

    components: ClassVar[dict[str, str]] = {"loss": "clip"}

    samples: int = 4
    """Responses for each prompt."""
    branches: int = 4
    """Continuations from each state whose value is estimated."""
    stride: int = 1
    """Tokens of a step; states lie at its multiples."""

    def __post_init__(self) -> None:
        if self.samples < 1 or self.branches < 1 or self.stride < 1:
            raise ValueError(
                f"samples={self.samples} branches={self.branches} stride={self.stride}: all must "
                "be at least 1"
            )

    def roles(self) -> tuple[Role, ...]:
        """The policy and a scorer; no critic."""
        return (Role("actor"), Role("reward", frozen=True))

    def samplings(self) -> tuple[Sampling, ...]:
        """``samples`` responses for each prompt."""
        return (Sampling(n=self.samples),)

    def provides(self) -> frozenset[str]:
        """``collect`` makes the advantages itself."""
        return frozenset({"advantages"})
