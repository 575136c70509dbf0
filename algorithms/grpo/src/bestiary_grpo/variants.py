"""Options of GRPO's relatives: other estimators, losses and samplers under the same algorithm."""

from dataclasses import dataclass
from typing import ClassVar

from bestiary_grpo.options import GRPOOptions


@dataclass(frozen=True, kw_only=True, slots=True)
class DrGRPOOptions(GRPOOptions):
    """Dr.GRPO (Liu et al. 2025, arXiv:2503.20783): no deviation, a constant length."""

    components: ClassVar[dict[str, str]] = {"advantage": "dr_grpo", "loss": "clip_constant"}


@dataclass(frozen=True, kw_only=True, slots=True)
class DAPOOptions(GRPOOptions):
    """DAPO (Yu et al. 2025, arXiv:2503.14476): clip-higher, token mean, dynamic sampling."""

    components: ClassVar[dict[str, str]] = {
        "advantage": "group",
        "loss": "clip_higher",
        "sampler": "dynamic",
    }

    overlong_buffer: int = 0
    """Tokens before the limit over which a long response loses up to ``overlong_penalty`` of its
    reward (eq. 13); 0 switches it off. The paper has 4,096 of 20,480."""
    overlong_penalty: float = 1.0
    """What a response at the limit loses."""

    def __post_init__(self) -> None:
        GRPOOptions.__post_init__(self)  # super() without arguments fails in a slots dataclass
        if self.overlong_buffer < 0 or self.overlong_penalty < 0:
            raise ValueError(
                f"overlong_buffer={self.overlong_buffer} overlong_penalty="
                f"{self.overlong_penalty}: must not be negative"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class GSPOOptions(GRPOOptions):
    """GSPO (Zheng et al. 2025, arXiv:2507.18071): the ratio of whole sequences."""

    components: ClassVar[dict[str, str]] = {"advantage": "group", "loss": "gspo"}


@dataclass(frozen=True, kw_only=True, slots=True)
class CISPOOptions(GRPOOptions):
    """CISPO (MiniMax 2025, arXiv:2506.13585): clipped importance weights, no dropped tokens."""

    components: ClassVar[dict[str, str]] = {"advantage": "group", "loss": "cispo"}


@dataclass(frozen=True, kw_only=True, slots=True)
class SAPOOptions(GRPOOptions):
    """SAPO (Gao et al. 2025, arXiv:2511.20347): a smooth gate in place of the clip."""

    components: ClassVar[dict[str, str]] = {"advantage": "group", "loss": "sapo"}


@dataclass(frozen=True, kw_only=True, slots=True)
class GMPOOptions(GRPOOptions):
    """GMPO (Zhao et al. 2025, arXiv:2507.20673): the geometric mean of token ratios."""

    components: ClassVar[dict[str, str]] = {"advantage": "group", "loss": "gmpo"}


@dataclass(frozen=True, kw_only=True, slots=True)
class GDPOOptions(GRPOOptions):
    """GDPO: several rewards, each normalised in its group before they are added."""

    components: ClassVar[dict[str, str]] = {"advantage": "gdpo", "loss": "clip"}


@dataclass(frozen=True, kw_only=True, slots=True)
class PassAtKOptions(GRPOOptions):
    """GRPO on the best of a group: pass@k training."""

    components: ClassVar[dict[str, str]] = {"advantage": "pass_at_k", "loss": "clip"}
