"""Options of the shared losses: light, so that requirements can be read without torch."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from bestiary.protocols import LossOptions, WeightMode


@dataclass(frozen=True, kw_only=True, slots=True)
class ClipOptions(LossOptions):
    """The clipped surrogate of PPO (Schulman et al. 2017, arXiv:1707.06347, eq. 7)."""

    requires: ClassVar[frozenset[str]] = frozenset({"old_logprobs", "advantages"})
    default_weights: ClassVar[WeightMode] = "token-mean"

    weights: WeightMode = "token-mean"
    """How tokens are weighted. GRPO's paper has seq-mean-token-mean; DAPO (arXiv:2503.14476,
    eq. 12) and TRL's default have token-mean, which does not favour short answers."""
    clip_low: float = 0.2
    """The ratio is clipped to [1 - clip_low, 1 + clip_high]."""
    clip_high: float = 0.2
    """Raise it above clip_low for clip-higher (DAPO: 0.28)."""
    dual_clip: float | None = None
    """Bound of the ratio for negative advantages (arXiv:1912.09729, eq. 5), above 1; None is
    the paper's PPO."""

    def __post_init__(self) -> None:
        if not 0.0 <= self.clip_low <= 1.0:
            raise ValueError(f"clip_low={self.clip_low}: must be in [0, 1]")
        if self.clip_high < 0.0:
            raise ValueError(f"clip_high={self.clip_high}: must not be negative")
        if self.dual_clip is not None and self.dual_clip <= 1.0:
            raise ValueError(f"dual_clip={self.dual_clip}: must be above 1")


@dataclass(frozen=True, kw_only=True, slots=True)
class KLOptions(LossOptions):
    """KL to the reference as a loss (Schulman 2020, "Approximating KL divergence")."""

    requires: ClassVar[frozenset[str]] = frozenset({"ref_logprobs"})

    kind: Literal["k1", "k2", "k3", "abs"] = "k3"
    """Estimator of the value."""
    gradient: Literal["value", "straight_through_k2", "ratio_weighted"] = "value"
    """What is differentiated. On-policy in expectation the gradient of k3's value is that of
    KL(reference || policy), and the other two are those of KL(policy || reference)."""

    def __post_init__(self) -> None:
        if self.kind == "k1" and self.gradient == "value":
            raise ValueError(
                "kl kind=k1 gradient=value has an expected gradient of zero; "
                "use gradient=straight_through_k2"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class EntropyOptions(LossOptions):
    """Minus the entropy of the tempered distribution: minimising it explores."""

    outputs: ClassVar[frozenset[str]] = frozenset({"entropy"})


@dataclass(frozen=True, kw_only=True, slots=True)
class NLLOptions(LossOptions):
    """Minus the log-likelihood of the response: supervised training and PTX."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ValueOptions(LossOptions):
    """The clipped squared error of a value head (arXiv:1707.06347 in its implementations)."""

    requires: ClassVar[frozenset[str]] = frozenset({"values", "returns"})
    outputs: ClassVar[frozenset[str]] = frozenset({"values"})

    clip: float | None = 0.2
    """Bound of the change from the old value; None for no clipping."""
