"""Options of the shared estimators: light, so that requirements can be read without torch."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from bestiary.protocols import AdvantageOptions


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupOptions(AdvantageOptions):
    """Group-relative advantages; the defaults are GRPO's (arXiv:2402.03300, eq. 3)."""

    requires: ClassVar[frozenset[str]] = frozenset({"reward"})

    baseline: Literal["mean", "leave_one_out", "none", "length_weighted"] = "mean"
    """What is subtracted: the group's mean, the mean of the others (RLOO), nothing, or the
    length-weighted mean (OPO)."""
    scale: Literal["none", "std", "leave_one_out_std", "batch_std"] = "std"
    """What it is divided by; ``none`` is Dr.GRPO."""
    ddof: int = 1
    """Of that deviation. The paper leaves it open; verl, SkyRL and TRL have 1."""
    eps: float = 1e-6
    """Added to the deviation: verl and SkyRL 1e-6, TRL 1e-4, OpenRLHF 1e-9."""
    singleton: Literal["zero", "raw", "scaled"] = "zero"
    """A group of one: 0, the raw reward, or the reward over 1 + eps as in verl."""

    def __post_init__(self) -> None:
        if self.ddof not in (0, 1):
            raise ValueError(f"ddof={self.ddof}: must be 0 or 1")
        if not self.eps >= 0:
            raise ValueError(f"eps={self.eps}: must not be negative")
