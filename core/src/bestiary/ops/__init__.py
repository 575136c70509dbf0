"""Pure functions on tensors: the formulae of every algorithm, without state, config or logging.

Tensors are ``[B, T]``, padded on the right, with a bool mask, or ``[B]``, one value a sequence;
results are exactly 0 where masked. Modules and functions load when first used, so importing this
package does not load torch. ``vtrace`` is the module, its function ``bestiary.ops.vtrace.vtrace``.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bestiary.ops import (
        corrections,
        groups,
        kl,
        lagrange,
        logits,
        masking,
        policy,
        returns,
        selection,
        value,
        vtrace,
        weights,
    )
    from bestiary.ops.corrections import decoupled_surrogate, importance_weights, rejection_mask
    from bestiary.ops.groups import group_advantages
    from bestiary.ops.kl import kl_estimate, kl_loss
    from bestiary.ops.lagrange import combine, lagrange_step
    from bestiary.ops.logits import (
        entropy_from_logits,
        full_kl,
        probs_squared,
        token_logprobs,
    )
    from bestiary.ops.masking import length_mask, masked_mean, masked_sum, masked_var, whiten
    from bestiary.ops.policy import (
        cispo,
        clipped_surrogate,
        gmpo,
        reinforce,
        sapo,
        sequence_surrogate,
    )
    from bestiary.ops.returns import discounted_returns, gae, terminal_rewards
    from bestiary.ops.selection import advantage_covariance, largest, random_priority
    from bestiary.ops.value import clipped_value_loss
    from bestiary.ops.weights import loss_totals, loss_weights, weighted_sum

_FUNCTIONS = {
    "corrections": ("decoupled_surrogate", "importance_weights", "rejection_mask"),
    "groups": ("group_advantages",),
    "kl": ("kl_estimate", "kl_loss"),
    "lagrange": ("combine", "lagrange_step"),
    "logits": ("entropy_from_logits", "full_kl", "probs_squared", "token_logprobs"),
    "masking": ("length_mask", "masked_mean", "masked_sum", "masked_var", "whiten"),
    "policy": ("cispo", "clipped_surrogate", "gmpo", "reinforce", "sapo", "sequence_surrogate"),
    "returns": ("discounted_returns", "gae", "terminal_rewards"),
    "selection": ("advantage_covariance", "largest", "random_priority"),
    "value": ("clipped_value_loss",),
    "vtrace": (),  # the function has the module's name, and one name cannot be both
    "weights": ("loss_totals", "loss_weights", "weighted_sum"),
}
_HOMES = {name: module for module, names in _FUNCTIONS.items() for name in names}

__all__ = [
    "advantage_covariance",
    "cispo",
    "clipped_surrogate",
    "clipped_value_loss",
    "combine",
    "corrections",
    "decoupled_surrogate",
    "discounted_returns",
    "entropy_from_logits",
    "full_kl",
    "gae",
    "gmpo",
    "group_advantages",
    "groups",
    "importance_weights",
    "kl",
    "kl_estimate",
    "kl_loss",
    "lagrange",
    "lagrange_step",
    "largest",
    "length_mask",
    "logits",
    "loss_totals",
    "loss_weights",
    "masked_mean",
    "masked_sum",
    "masked_var",
    "masking",
    "policy",
    "probs_squared",
    "random_priority",
    "reinforce",
    "rejection_mask",
    "returns",
    "sapo",
    "selection",
    "sequence_surrogate",
    "terminal_rewards",
    "token_logprobs",
    "value",
    "vtrace",
    "weighted_sum",
    "weights",
    "whiten",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - PEP 562: the type depends on the name
    if name in _FUNCTIONS:
        return import_module(f"bestiary.ops.{name}")
    if name in _HOMES:
        return getattr(import_module(f"bestiary.ops.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'bestiary.ops' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
