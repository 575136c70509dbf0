"""Options of the shared estimators: light, so that requirements can be read without torch."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from bestiary.kit.rewards import READS
from bestiary.protocols import AdvantageOptions, Scope

EpsMode = Literal["var_plus", "var_floor", "std_plus"]
Whitening = Literal["token", "sample", "none"]
Singleton = Literal["zero", "raw", "scaled"]
_RETURNS = frozenset({"advantages", "returns"})


def _check_deviation(ddof: int, eps: float) -> None:
    if ddof not in (0, 1):
        raise ValueError(f"ddof={ddof}: must be 0 or 1")
    if not eps >= 0:
        raise ValueError(f"eps={eps}: must not be negative")


def _check_unit(**values: float) -> None:
    for name, value in values.items():
        if not 0.0 <= value <= 1.0:
            raise ValueError(f"{name}={value}: must be in [0, 1]")


# --------------------------------------------------------------------------- groups


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
    singleton: Singleton = "zero"
    """A group of one: 0, the raw reward, or the reward over 1 + eps as in verl."""

    def __post_init__(self) -> None:
        _check_deviation(self.ddof, self.eps)


@dataclass(frozen=True, kw_only=True, slots=True)
class DrGRPOOptions(GroupOptions):
    """Dr.GRPO's advantages: the group's mean, no deviation (arXiv:2503.20783)."""

    scale: Literal["none", "std", "leave_one_out_std", "batch_std"] = "none"
    """What it is divided by; Dr.GRPO divides by nothing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _SequenceOptions(AdvantageOptions):
    scope: ClassVar[Scope] = "group"
    optional: ClassVar[frozenset[str]] = READS


@dataclass(frozen=True, kw_only=True, slots=True)
class RLOOOptions(_SequenceOptions):
    """The reward against the mean of the others of its group (arXiv:2402.14740)."""

    singleton: Singleton = "zero"
    """A group of one: 0, or the raw reward as in verl's loop."""
    whiten: Literal["sample", "none"] = "none"
    """``sample`` whitens over the samples of the batch: TRL's ``normalize_advantages``."""
    whiten_eps: float = 1e-4
    """Added to that deviation; TRL has 1e-4."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OPOOptions(_SequenceOptions):
    """The reward against the length-weighted mean of its group (arXiv:2505.23585, eq. 5)."""

    singleton: Singleton = "zero"
    """A group of one: 0, or the raw reward as in verl."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GPGOptions(_SequenceOptions):
    """The reward against its group's mean, scaled by the share of rewards that are not 0."""

    singleton: Singleton = "zero"
    """A group of one: 0, or the raw reward as in verl."""
    f_norm: float = 1.0
    """What it is divided by; arXiv:2504.02546 has 1 or the deviation, verl 1."""

    def __post_init__(self) -> None:
        if not self.f_norm > 0:
            raise ValueError(f"f_norm={self.f_norm}: must be above 0")


@dataclass(frozen=True, kw_only=True, slots=True)
class OTBOptions(AdvantageOptions):
    """Returns to go against the variance-optimal baseline of their group and token."""

    scope: ClassVar[Scope] = "group"
    requires: ClassVar[frozenset[str]] = frozenset({"reward", "old_logprobs", "probs_squared"})
    optional: ClassVar[frozenset[str]] = READS

    rho_squared: bool = False
    """Weigh by the squared ratio of trainer and engine; needs ``rollout_logprobs``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PassAtKOptions(AdvantageOptions):
    """Only the best of a group counts: by how much it beats the second best."""

    ddof: int = 1
    """Of the group's deviation."""
    eps: float = 1e-6
    """Added to the deviation."""
    scale: bool = True
    """Divide by the group's deviation."""

    def __post_init__(self) -> None:
        _check_deviation(self.ddof, self.eps)


@dataclass(frozen=True, kw_only=True, slots=True)
class GDPOOptions(AdvantageOptions):
    """Several rewards, each normalised in its group, then added and whitened."""

    scope: ClassVar[Scope] = "group"
    requires: ClassVar[frozenset[str]] = frozenset({"reward", "parts"})

    weights: Mapping[str, float] = field(default_factory=dict)
    """Weight of each part of the reward; parts that are not named have 1."""
    ddof: int = 1
    """Of the group's deviation."""
    eps: float = 1e-6
    """Added to the group's deviation."""
    whiten: Whitening = "token"
    """Whiten the sum over the batch: each token counts (verl), each sample counts, its deviation
    plus ``whiten_eps`` (TRL), or not at all."""
    whiten_eps: float = 1e-4
    """Added to the deviation over samples; TRL has 1e-4."""

    def __post_init__(self) -> None:
        _check_deviation(self.ddof, self.eps)


# --------------------------------------------------------------------------- returns


@dataclass(frozen=True, kw_only=True, slots=True)
class ReturnOptions(AdvantageOptions):
    """Rewards to go, without a baseline (Williams 1992)."""

    scope: ClassVar[Scope] = "row"
    optional: ClassVar[frozenset[str]] = READS

    gamma: float = 1.0
    """Discount for each token."""

    def __post_init__(self) -> None:
        _check_unit(gamma=self.gamma)


@dataclass(frozen=True, kw_only=True, slots=True)
class ReinforcePPOptions(ReturnOptions):
    """Rewards to go with the KL to go, whitened over the batch (arXiv:2501.03262)."""

    ddof: int = 0
    """Of the batch's variance: OpenRLHF 0, verl 1."""
    eps: float = 1e-8
    """Regulariser of the deviation."""
    eps_mode: EpsMode = "var_floor"
    """Where it enters: OpenRLHF takes max(var, eps), verl adds it to the variance."""

    def __post_init__(self) -> None:
        ReturnOptions.__post_init__(self)
        _check_deviation(self.ddof, self.eps)


@dataclass(frozen=True, kw_only=True, slots=True)
class ReinforcePPBaselineOptions(ReinforcePPOptions):
    """As reinforce_pp, with the group's mean taken off each reward first (arXiv:2501.03262)."""

    scope: ClassVar[Scope] = "group"

    singleton: Singleton = "zero"
    """A group of one: 0, or the raw reward as in verl."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReMaxOptions(AdvantageOptions):
    """The reward against that of the greedy response (arXiv:2310.10505)."""

    scope: ClassVar[Scope] = "row"
    requires: ClassVar[frozenset[str]] = frozenset({"reward", "baseline_reward"})
    optional: ClassVar[frozenset[str]] = READS

    kl: Literal["one_step", "accumulated"] = "one_step"
    """How a KL in the reward enters: each token's own, as in the original code, or the KL to go,
    which alone is the gradient of E[r] - β·KL."""
    clip: float | None = 5.0
    """Bound of |r - r_greedy|; the original code has 5, None has none."""
    gamma: float = 1.0
    """Discount for each token. As in the original code the last token is discounted once."""

    def __post_init__(self) -> None:
        _check_unit(gamma=self.gamma)
        if self.clip is not None and not self.clip > 0:
            raise ValueError(f"clip={self.clip}: must be above 0, or null for no bound")


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessOptions(AdvantageOptions):
    """Process rewards to go, against the group's mean at the same token."""

    scope: ClassVar[Scope] = "group"
    requires: ClassVar[frozenset[str]] = frozenset({"reward", "token_rewards"})
    optional: ClassVar[frozenset[str]] = READS

    gamma: float = 1.0
    """Discount for each token."""
    baseline: Literal["mean", "none"] = "mean"
    """What is subtracted."""

    def __post_init__(self) -> None:
        _check_unit(gamma=self.gamma)


# --------------------------------------------------------------------------- values


@dataclass(frozen=True, kw_only=True, slots=True)
class GAEOptions(AdvantageOptions):
    """Generalised advantage estimation (Schulman et al. 2016, arXiv:1506.02438)."""

    scope: ClassVar[Scope] = "row"
    requires: ClassVar[frozenset[str]] = frozenset({"reward", "values"})
    provides: ClassVar[frozenset[str]] = _RETURNS
    optional: ClassVar[frozenset[str]] = READS | {"truncated", "values_after"}

    gamma: float = 1.0
    """Discount for each token."""
    lam: float = 0.95
    """Trace decay; 1 is Monte-Carlo, 0 the one-step error."""
    whiten: bool = True
    """Whiten the advantages over the batch, as InstructGPT, verl and TRL do."""
    ddof: int = 1
    """Of the batch's variance."""
    eps: float = 1e-8
    """Regulariser of the deviation."""
    eps_mode: EpsMode = "var_plus"
    """Where it enters."""
    truncated: Literal["terminal", "bootstrap"] = "terminal"
    """A response that the token limit cut: its end, or a state whose value goes on."""

    def __post_init__(self) -> None:
        _check_unit(gamma=self.gamma, lam=self.lam)
        _check_deviation(self.ddof, self.eps)


@dataclass(frozen=True, kw_only=True, slots=True)
class VTraceOptions(AdvantageOptions):
    """V-trace (Espeholt et al. 2018, arXiv:1802.01561)."""

    scope: ClassVar[Scope] = "row"
    requires: ClassVar[frozenset[str]] = frozenset(
        {"reward", "values", "old_logprobs", "rollout_logprobs"}
    )
    provides: ClassVar[frozenset[str]] = _RETURNS
    optional: ClassVar[frozenset[str]] = READS | {"truncated", "values_after"}

    gamma: float = 1.0
    """Discount for each token."""
    rho_bar: float = 1.0
    """Cut of the ratio in the TD error: it decides whose values are learned."""
    c_bar: float = 1.0
    """Cut of the trace."""
    rho_pg: float = 1.0
    """Cut of the ratio in the advantages."""
    whiten: bool = True
    """Whiten the advantages over the batch."""
    truncated: Literal["terminal", "bootstrap"] = "terminal"
    """A response that the token limit cut: its end, or a state whose value goes on."""

    def __post_init__(self) -> None:
        _check_unit(gamma=self.gamma)
        for name in ("rho_bar", "c_bar", "rho_pg"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name}={getattr(self, name)}: must not be negative")
