"""KL to the reference as a part of an algorithm: options, and the coefficient with its state."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from bestiary.protocols import Role, Term

KLKind = Literal["k1", "k2", "k3", "abs", "full"]

_WINDOW = 0.2
"""Bound of the relative error that the adaptive controller reacts to."""


@dataclass(frozen=True, kw_only=True, slots=True)
class KLPenalty:
    """How the policy is held near the reference."""

    coef: float = 0.0
    """Strength β; 0 needs no reference model."""
    where: Literal["reward", "loss"] = "reward"
    """In the token rewards, before advantages (InstructGPT, arXiv:2203.02155), or as a term of
    the loss (GRPO, arXiv:2402.03300)."""
    kind: KLKind = "k1"
    """Estimator of the KL (Schulman 2020), or ``full``: exact, over the whole vocabulary, in the
    loss only and with the reference in the actor's processes."""
    gradient: Literal["value", "straight_through_k2", "ratio_weighted"] = "value"
    """In the loss: what is differentiated. verl's ``k1+`` and ``k3+`` are
    ``straight_through_k2``."""
    target: float | None = None
    """Adapt β so that the KL stays near this value (Ziegler et al. 2019, arXiv:1909.08593,
    section 2.2); None keeps β fixed."""
    horizon: int = 10_000
    """Responses over which the adaptive β reacts."""

    def __post_init__(self) -> None:
        if self.coef < 0:
            raise ValueError(f"kl.coef={self.coef}: must not be negative")
        if self.target is not None and not (self.target > 0 and self.coef > 0):
            raise ValueError(
                f"kl.target={self.target} with kl.coef={self.coef}: both must be above 0"
            )
        if self.horizon < 1:
            raise ValueError(f"kl.horizon={self.horizon}: must be at least 1")
        if self.where == "reward" and self.kind == "full" and self.coef > 0:
            raise ValueError("kl.kind=full is a term of the loss: set kl.where=loss")
        if self.where == "loss" and self.kind == "k1" and self.gradient == "value":
            raise ValueError(
                "kl.where=loss kl.kind=k1 kl.gradient=value has an expected gradient of zero; "
                "use kl.gradient=straight_through_k2, or kl.kind=k3"
            )

    def roles(self) -> tuple[Role, ...]:
        """The frozen reference, where β is above 0."""
        return (Role("reference", frozen=True),) if self.coef > 0 else ()

    def provides(self) -> frozenset[str]:
        """The reference's column, where β is above 0."""
        return frozenset({"ref_logprobs"}) if self.coef > 0 else frozenset()


def kl_term(coef: float, kind: str, gradient: str = "value") -> Term:
    """The KL to the reference as a term of the loss; ``full`` has its exact gradient."""
    if kind == "full":
        return Term("kl_full", coef=coef)
    return Term("kl", coef=coef, options={"kind": kind, "gradient": gradient})


class KLControl:
    """The coefficient β of a run.

    Args:
        options: how it starts and whether it adapts.
    """

    def __init__(self, options: KLPenalty) -> None:
        self.options = options
        self.coef = options.coef

    @property
    def in_reward(self) -> bool:
        """Whether token rewards carry it."""
        return self.options.coef > 0 and self.options.where == "reward"

    def scalars(self) -> dict[str, Any]:
        """What an estimator needs to put it into token rewards; empty where it is not there."""
        return {"kl_coef": self.coef, "kl_kind": self.options.kind} if self.in_reward else {}

    def terms(self) -> tuple[Term, ...]:
        """The term of the loss; empty where it is in the reward, or off."""
        o = self.options
        if o.coef == 0 or o.where == "reward":
            return ()
        return (kl_term(self.coef, o.kind, o.gradient),)

    def step(self, metrics: Mapping[str, float], responses: int) -> dict[str, float]:
        """Adapt β once a step: β ← β·(1 + clip(KL/target − 1, ±0.2)·responses/horizon).

        Args:
            metrics: of the step; ``kl/reward`` or ``kl/reference`` is the measured KL.
            responses: rows of the step.

        Returns:
            The β that this step used, as a metric.
        """
        o = self.options
        if o.coef == 0:
            return {}
        used = {"kl/coef": self.coef}
        found = metrics.get("kl/reward" if self.in_reward else "kl/reference")
        if o.target is not None and found is not None and found == found:  # not NaN
            error = min(max(found / o.target - 1.0, -_WINDOW), _WINDOW)
            self.coef *= 1.0 + error * responses / o.horizon
        return used

    def state_dict(self) -> dict[str, Any]:
        """The coefficient."""
        return {"coef": self.coef}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved coefficient."""
        self.coef = float(state["coef"])
