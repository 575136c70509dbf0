"""The critic's loss."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from bestiary.ops._common import Number, live, same_shape, widen


def clipped_value_loss(
    values: Float[Tensor, "*shape"],
    old_values: Float[Tensor, "*shape"],
    returns: Float[Tensor, "*shape"],
    mask: Bool[Tensor, "*shape"] | None = None,
    *,
    clip: Number | None = 0.2,
) -> Float[Tensor, "*shape"]:
    """Square the value error, pessimistically outside a band around the old value.

    ½·max((V − R)², (clip(V, V_old − ε, V_old + ε) − R)²) for each token.

    Source: the value clipping of OpenAI's PPO code (baselines ``ppo2``), not in the paper; the
    factor ½ as in DeepSpeed-Chat, OpenRLHF and verl.

    Args:
        values: critic values, with gradient; any shape.
        old_values: values when the batch was collected, constants (detached here).
        returns: value targets, constants (detached here).
        mask: bool, the same shape; None takes every token.
        clip: half width ε of the band, > 0; None is the plain squared error.

    Returns:
        same shape, loss for each token, float32 (float64 if an input is), 0 where masked.

    Raises:
        ValueError: if ``clip`` is not positive.
    """
    if clip is not None and not clip > 0:
        raise ValueError(f"clip must be positive, or None for no clipping; got {clip}")
    same_shape(
        "clipped_value_loss", values=values, old_values=old_values, returns=returns, mask=mask
    )
    values, old_values, returns = widen(values, old_values.detach(), returns.detach())
    values, old_values, returns = (live(x, mask) for x in (values, old_values, returns))
    error = (values - returns).square()
    if clip is not None:
        clipped = torch.clamp(values, old_values - clip, old_values + clip)
        error = torch.maximum(error, (clipped - returns).square())
    return error / 2
