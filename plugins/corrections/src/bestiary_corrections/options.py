"""Options of corrections: light, so that requirements can be read without torch."""

from dataclasses import dataclass
from typing import Literal

from bestiary.protocols import CorrectionOptions

Kind = Literal["token", "sequence", "geometric", "veto"]
Criterion = tuple[Kind, float | None, float | None]


@dataclass(frozen=True, kw_only=True, slots=True)
class TISOptions(CorrectionOptions):
    """Truncated importance sampling: w = min(π_old/μ, C) (Ionides 2008; Yao et al. 2025)."""

    level: Literal["token", "sequence", "geometric"] = "token"
    """What one ratio belongs to: a token, the product over a response, its geometric mean."""
    cap: float = 2.0
    """Largest weight C; verl has 2."""
    normalise: Literal["none", "mean"] = "none"
    """``mean`` divides by the mean weight of the batch, after the cap."""

    def __post_init__(self) -> None:
        if not self.cap > 0:
            raise ValueError(f"cap={self.cap}: must be above 0")


@dataclass(frozen=True, kw_only=True, slots=True)
class RejectOptions(CorrectionOptions):
    """Keep tokens whose ratio π_old/μ lies within the bounds of every criterion."""

    criteria: tuple[tuple[str, float | None, float | None], ...] = (("geometric", 0.999, 1.001),)
    """(kind, low, high), bounds inclusive, null for none. ``token`` judges each token by its own
    ratio, ``sequence`` a response by the product, ``geometric`` by the geometric mean, ``veto``
    drops a response of which any token is outside."""
    weighted: bool = False
    """Kept tokens have the ratio as their weight; else 1."""

    def __post_init__(self) -> None:
        for kind, low, high in self.criteria:
            if kind not in ("token", "sequence", "geometric", "veto"):
                raise ValueError(f"criteria: {kind!r} is none of token, sequence, geometric, veto")
            bottom, top = low or 0.0, float("inf") if high is None else high
            if not 0.0 <= bottom <= top:
                raise ValueError(f"criteria: {kind} needs 0 <= low <= high, got {low} and {high}")


@dataclass(frozen=True, kw_only=True, slots=True)
class IcePopOptions(RejectOptions):
    """ρ·1[low ≤ ρ ≤ high] for each token (IcePop, also called masked importance sampling)."""

    criteria: tuple[tuple[str, float | None, float | None], ...] = (("token", 0.5, 5.0),)
    """(kind, low, high), bounds inclusive; IcePop has 0.5 and 5."""
    weighted: bool = True
    """Kept tokens have the ratio as their weight; else 1."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GeometricMaskOptions(RejectOptions):
    """Keep responses whose geometric mean ratio lies within the bounds (Liu et al. 2025)."""
