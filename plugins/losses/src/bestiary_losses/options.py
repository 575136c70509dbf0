"""Options of the shared losses: light, so that requirements can be read without torch."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from bestiary.protocols import LossOptions, WeightMode

_OLD = frozenset({"old_logprobs", "advantages"})


def _check_range(low: float, high: float) -> None:
    if not 0.0 <= low <= 1.0:
        raise ValueError(f"clip_low={low}: must be in [0, 1]")
    if high < 0.0:
        raise ValueError(f"clip_high={high}: must not be negative")


# --------------------------------------------------------------------------- policy losses


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyLossOptions(LossOptions):
    """What policy losses share."""

    requires: ClassVar[frozenset[str]] = _OLD
    corrected: ClassVar[bool] = True

    weights: WeightMode = "token-mean"
    """How tokens are weighted. DAPO (arXiv:2503.14476, eq. 12) and TRL's default have token-mean,
    which does not favour short answers; GRPO's paper has seq-mean-token-mean."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ClipOptions(PolicyLossOptions):
    """The clipped surrogate of PPO (Schulman et al. 2017, arXiv:1707.06347, eq. 7)."""

    clip_low: float = 0.2
    """The ratio is clipped to [1 - clip_low, 1 + clip_high]."""
    clip_high: float = 0.2
    """Raise it above clip_low for clip-higher (DAPO: 0.28)."""
    dual_clip: float | None = None
    """Bound of the ratio for negative advantages (arXiv:1912.09729, eq. 5), above 1; None is
    the paper's PPO, verl has 3."""

    def __post_init__(self) -> None:
        _check_range(self.clip_low, self.clip_high)
        if self.dual_clip is not None and self.dual_clip <= 1.0:
            raise ValueError(f"dual_clip={self.dual_clip}: must be above 1")


@dataclass(frozen=True, kw_only=True, slots=True)
class ClipHigherOptions(ClipOptions):
    """DAPO's clipped surrogate: a wider range above 1 (arXiv:2503.14476, eq. 8)."""

    clip_high: float = 0.28
    """Upper end of the range above 1."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ClipConstantOptions(ClipOptions):
    """Dr.GRPO's clipped surrogate: sums divided by a constant length (arXiv:2503.20783)."""

    weights: WeightMode = "seq-mean-token-sum-norm"
    """How tokens are weighted."""
    length_norm: float | None = None
    """The constant length; None is what the algorithm passes, its limit of response tokens."""


_COVARIANCE = _OLD | {"selected", "row_key", "valid"}


@dataclass(frozen=True, kw_only=True, slots=True)
class ClipCovOptions(ClipOptions):
    """Clip-Cov: no gradient for a few tokens of high covariance (arXiv:2505.22617, eq. 12)."""

    requires: ClassVar[frozenset[str]] = _COVARIANCE
    selects: ClassVar[frozenset[str]] = frozenset({"selected"})

    ratio: float = 2e-4
    """Share of the batch's tokens that is dropped, one at least; drawn at random from the range."""
    cov_low: float = 1.0
    """Covariances above this may be drawn; the paper and verl have 1."""
    cov_high: float = 5.0
    """Covariances below this may be drawn; the paper and verl have 5."""

    def __post_init__(self) -> None:
        ClipOptions.__post_init__(self)
        if not 0.0 < self.ratio <= 1.0:
            raise ValueError(f"ratio={self.ratio}: must be in (0, 1]")
        if not self.cov_low < self.cov_high:
            raise ValueError(f"cov_low={self.cov_low} must be below cov_high={self.cov_high}")


@dataclass(frozen=True, kw_only=True, slots=True)
class KLCovOptions(PolicyLossOptions):
    """KL-Cov: −ρA, and a penalty on the tokens of highest covariance (arXiv:2505.22617, eq. 14)."""

    requires: ClassVar[frozenset[str]] = _COVARIANCE
    selects: ClassVar[frozenset[str]] = frozenset({"selected"})

    ratio: float = 2e-4
    """Share of the batch's tokens that is penalised, one at least: those of largest covariance."""
    kl_coef: float = 1.0
    """Weight of |log π/π_old| on them; the paper and verl have 1."""

    def __post_init__(self) -> None:
        if not 0.0 < self.ratio <= 1.0:
            raise ValueError(f"ratio={self.ratio}: must be in (0, 1]")
        if self.kl_coef < 0.0:
            raise ValueError(f"kl_coef={self.kl_coef}: must not be negative")


@dataclass(frozen=True, kw_only=True, slots=True)
class GSPOOptions(PolicyLossOptions):
    """GSPO: the ratio of whole sequences (Zheng et al. 2025, arXiv:2507.18071, eq. 5)."""

    weights: WeightMode = "seq-mean-token-mean"
    """How tokens are weighted; the paper's is seq-mean-token-mean."""
    clip_low: float = 3e-4
    """The sequence ratio is clipped to [1 - clip_low, 1 + clip_high]; the paper has 3e-4."""
    clip_high: float = 4e-4
    """The paper has 4e-4."""

    def __post_init__(self) -> None:
        _check_range(self.clip_low, self.clip_high)


@dataclass(frozen=True, kw_only=True, slots=True)
class CISPOOptions(PolicyLossOptions):
    """CISPO: a clipped importance weight on every token (MiniMax-M1, arXiv:2506.13585, eq. 4)."""

    clip_low: float = 1.0
    """The weight is clipped to [1 - clip_low, 1 + clip_high]; the paper has no lower bound, verl
    has 0.2."""
    clip_high: float = 0.28
    """Tuned in the paper; verl 0.2, TRL 4 (``epsilon_high`` 5)."""

    def __post_init__(self) -> None:
        _check_range(self.clip_low, self.clip_high)


@dataclass(frozen=True, kw_only=True, slots=True)
class SAPOOptions(PolicyLossOptions):
    """SAPO: a sigmoid gate in place of the clip (Gao et al. 2025, arXiv:2511.20347)."""

    weights: WeightMode = "seq-mean-token-mean"
    """How tokens are weighted; the paper's is seq-mean-token-mean."""
    tau_pos: float = 1.0
    """Temperature of the gate for positive advantages."""
    tau_neg: float = 1.05
    """The same for the others; larger fades faster."""

    def __post_init__(self) -> None:
        if not (self.tau_pos > 0 and self.tau_neg > 0):
            raise ValueError(f"tau_pos={self.tau_pos} tau_neg={self.tau_neg}: must be above 0")


@dataclass(frozen=True, kw_only=True, slots=True)
class GMPOOptions(PolicyLossOptions):
    """GMPO: the geometric mean of clipped ratios (Zhao et al. 2025, arXiv:2507.20673)."""

    weights: WeightMode = "seq-mean-token-mean"
    """How tokens are weighted; the paper's is seq-mean-token-mean."""
    clip_low: float = 0.4
    """Bound of a token's log ratio below 0, nats."""
    clip_high: float = 0.4
    """Bound of a token's log ratio above 0, nats."""

    def __post_init__(self) -> None:
        if not (self.clip_low >= 0 and self.clip_high >= 0):
            raise ValueError(
                f"clip_low={self.clip_low} clip_high={self.clip_high}: must not be negative"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class ReinforceOptions(PolicyLossOptions):
    """-A·log π, without a ratio (Williams 1992)."""

    requires: ClassVar[frozenset[str]] = frozenset({"advantages"})

    weights: WeightMode = "seq-mean-token-sum"
    """How tokens are weighted; seq-mean-token-sum is the policy gradient, the code of ReMax has
    token-mean."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DROOptions(PolicyLossOptions):
    """-(A·log π - β/2·(log π/π_old)²): direct reward optimisation (arXiv:2405.19107)."""

    beta: float = 0.1
    """Strength of the quadratic pull to the old policy."""

    def __post_init__(self) -> None:
        if not self.beta > 0:
            raise ValueError(f"beta={self.beta}: must be above 0")


@dataclass(frozen=True, kw_only=True, slots=True)
class DPPOOptions(PolicyLossOptions):
    """A trust region on each token's probability in place of a clipped ratio, as in verl's dppo."""

    divergence: Literal["tv", "kl"] = "tv"
    """Distance of the token's probability from the old one: |p - q|, or the KL of two outcomes,
    this token or another."""
    threshold: float = 0.2
    """Tokens beyond it that would move further away carry no gradient."""
    cap: float = 20.0
    """Bound of the ratio that weighs a token."""

    def __post_init__(self) -> None:
        if not (self.threshold > 0 and self.cap > 0):
            raise ValueError(f"threshold={self.threshold} cap={self.cap}: must be above 0")


@dataclass(frozen=True, kw_only=True, slots=True)
class DecoupledOptions(PolicyLossOptions):
    """Decoupled PPO: clipped around the proximal policy, weighted from the behaviour policy.

    Source: Hilton et al. 2021, arXiv:2110.00641; AReaL, arXiv:2505.24298, eq. 5.
    """

    requires: ClassVar[frozenset[str]] = _OLD | {"rollout_logprobs"}
    # It corrects by itself.
    corrected: ClassVar[bool] = False

    clip_low: float = 0.2
    """The ratio to the proximal policy is clipped to [1 - clip_low, 1 + clip_high]."""
    clip_high: float = 0.2
    """See clip_low."""
    cap: float | None = None
    """Bound of the behaviour weight; AReaL has 5. None is none."""
    cap_mode: Literal["truncate", "mask"] = "truncate"
    """Beyond the cap: use the cap, or give the token no loss."""

    def __post_init__(self) -> None:
        _check_range(self.clip_low, self.clip_high)
        if self.cap is not None and not self.cap > 0:
            raise ValueError(f"cap={self.cap}: must be above 0, or null for none")


# --------------------------------------------------------------------------- other terms


@dataclass(frozen=True, kw_only=True, slots=True)
class KLOptions(LossOptions):
    """KL to the reference as a loss (Schulman 2020, "Approximating KL divergence")."""

    requires: ClassVar[frozenset[str]] = frozenset({"ref_logprobs"})
    optional: ClassVar[frozenset[str]] = frozenset({"old_logprobs"})

    kind: Literal["k1", "k2", "k3", "abs"] = "k3"
    """Estimator of the value."""
    gradient: Literal["value", "straight_through_k2", "ratio_weighted"] = "value"
    """What is differentiated. On-policy in expectation the gradient of k3's value is that of
    KL(reference || policy), and the other two are those of KL(policy || reference)."""
    clamp: float | None = None
    """Bound of a token's estimate, nats; verl has 10 for k3. None is none."""

    def __post_init__(self) -> None:
        if self.kind == "k1" and self.gradient == "value":
            raise ValueError(
                "kl kind=k1 gradient=value has an expected gradient of zero; "
                "use gradient=straight_through_k2"
            )
        if self.clamp is not None and not self.clamp > 0:
            raise ValueError(f"clamp={self.clamp}: must be above 0, or null for none")


@dataclass(frozen=True, kw_only=True, slots=True)
class KLFullOptions(LossOptions):
    """KL to the reference over the whole vocabulary: no estimate, and its exact gradient."""

    outputs: ClassVar[frozenset[str]] = frozenset({"kl"})


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

    def __post_init__(self) -> None:
        if self.clip is not None and not self.clip > 0:
            raise ValueError(f"clip={self.clip}: must be above 0, or null for no clipping")


# --------------------------------------------------------------------------- pairs


@dataclass(frozen=True, kw_only=True, slots=True)
class PairOptions(LossOptions):
    """What losses of preference pairs share: a group is a pair of rows."""

    requires: ClassVar[frozenset[str]] = frozenset({"preferred", "group"})
    default_weights: ClassVar[WeightMode] = "seq-mean-token-sum"
    unit: ClassVar[Literal["row", "group"]] = "group"


@dataclass(frozen=True, kw_only=True, slots=True)
class BradleyTerryOptions(PairOptions):
    """-log σ(s(preferred) - s(other)) (Bradley and Terry 1952; arXiv:2203.02155, eq. 1)."""

    outputs: ClassVar[frozenset[str]] = frozenset({"values"})

    center: float = 0.0
    """Weight of (s + s')², which keeps scores near 0 (arXiv:2312.09244); 0 is none."""

    def __post_init__(self) -> None:
        if self.center < 0:
            raise ValueError(f"center={self.center}: must not be negative")


@dataclass(frozen=True, kw_only=True, slots=True)
class CostPreferenceOptions(PairOptions):
    """Safe RLHF's cost model: order by harm, and unsafe above 0 (arXiv:2310.12773, eq. 8)."""

    requires: ClassVar[frozenset[str]] = frozenset({"preferred", "unsafe", "group"})
    outputs: ClassVar[frozenset[str]] = frozenset({"values"})


@dataclass(frozen=True, kw_only=True, slots=True)
class DPOOptions(PairOptions):
    """Direct preference optimisation (Rafailov et al. 2023, arXiv:2305.18290, eq. 7)."""

    requires: ClassVar[frozenset[str]] = frozenset({"preferred", "ref_logprobs", "group"})

    beta: float = 0.1
    """Strength of the pull to the reference."""
    label_smoothing: float = 0.0
    """Probability that a label is wrong (arXiv:2305.18290, "conservative DPO")."""
    variant: Literal["sigmoid", "ipo"] = "sigmoid"
    """``ipo``: (h - 1/(2β))² on mean log ratios (arXiv:2310.12036, as in TRL)."""

    def __post_init__(self) -> None:
        if not self.beta > 0 or not 0.0 <= self.label_smoothing < 0.5:
            raise ValueError(
                f"beta={self.beta} label_smoothing={self.label_smoothing}: the first must be "
                "above 0, the second in [0, 0.5)"
            )
