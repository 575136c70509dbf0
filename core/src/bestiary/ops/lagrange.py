"""The Lagrange multiplier of a constraint on the expected cost."""

import math

from jaxtyping import Float
from torch import Tensor

from bestiary.ops._common import Number, same_shape, widen


def lagrange_step(
    lam: Number, mean_cost: Number, threshold: Number, lr: Number, lam_max: Number | None
) -> float:
    """Move the multiplier towards meeting the constraint E[cost] ≤ threshold.

    ln λ ← min(ln λ + α·λ·(J_C − d), ln λ_max): one step of gradient ascent on λ·(J_C − d), taken in
    ln λ so that λ stays positive.

    Source: Dai et al. 2023 (Safe-RLHF), arXiv:2310.12773, eq. 31. Call it once a rollout with a
    cost averaged over all ranks, otherwise λ's rate depends on how the batch was split.

    Args:
        lam: the multiplier λ, > 0.
        mean_cost: J_C, mean raw cost of the recent episodes.
        threshold: d, the cost that is allowed.
        lr: step size α, ≥ 0.
        lam_max: upper bound of λ, > 0; None is no bound.

    Returns:
        the new multiplier, float.

    Raises:
        ValueError: if ``lam`` or ``lam_max`` is not positive, or a number is not finite (a NaN cost
            would stay in λ for ever).
    """
    if not (lam > 0 and (lam_max is None or lam_max > 0)):
        raise ValueError(f"lam and lam_max must be positive, got {lam} and {lam_max}")
    log_lam = math.log(lam) + lr * lam * (mean_cost - threshold)
    if not math.isfinite(log_lam):
        raise ValueError(
            f"cannot step the multiplier: lam={lam}, mean_cost={mean_cost}, "
            f"threshold={threshold}, lr={lr} must be finite"
        )
    return math.exp(log_lam if lam_max is None else min(log_lam, math.log(lam_max)))


def combine(
    reward_advantages: Float[Tensor, "*shape"],
    cost_advantages: Float[Tensor, "*shape"],
    lam: Number | Float[Tensor, ""],
) -> Float[Tensor, "*shape"]:
    """Weigh the advantages of reward and cost into one.

    A = (A_r − λ·A_c) / (1 + λ). Division by 1 + λ keeps the size of the update, whatever λ is. A KL
    penalty that enters the reward with − and the cost with + keeps its weight for every λ.

    Source: Dai et al. 2023 (Safe-RLHF), arXiv:2310.12773. The paper's eq. 30 weighs two clipped
    losses; its code combines before the clip, as here.

    Args:
        reward_advantages: any shape.
        cost_advantages: the same shape.
        lam: the multiplier λ, ≥ 0.

    Returns:
        same shape, float32 (float64 if an input is); 0 where both inputs are 0, masked tokens among
        them.

    Raises:
        ValueError: if ``lam`` is negative or NaN.
    """
    if not float(lam) >= 0:
        raise ValueError(f"lam must not be negative, got {float(lam)}")
    same_shape("combine", reward_advantages=reward_advantages, cost_advantages=cost_advantages)
    reward_advantages, cost_advantages = widen(reward_advantages, cost_advantages)
    return (reward_advantages - lam * cost_advantages) / (1 + lam)
