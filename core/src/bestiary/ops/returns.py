"""Returns and generalised advantages over the unmasked tokens of a response."""

# Shape suffixes: B = sequences in the batch, T = response tokens (padded on the right).

import torch
from jaxtyping import Bool, Float, Real
from torch import Tensor

from bestiary.ops._common import Number, live, one_per_row, same_shape, widen, within
from bestiary.ops._scan import next_live, reverse_scan


def terminal_rewards(scores: Real[Tensor, " B"], mask: Bool[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """Put each sequence's score on its last unmasked token.

    The last token that the policy produced carries the score: the end token where there is one,
    the last token before the limit otherwise, never the first pad.

    Args:
        scores: [B], one score for each sequence.
        mask: [B, T] bool, True on the tokens that the policy sampled.

    Returns:
        [B, T] float32 (float64 for float64 input); a row without unmasked token is all 0.
    """
    one_per_row("terminal_rewards", mask.shape[0], scores=scores)
    (scores,) = widen(scores)
    is_last = mask & (mask.flip(-1).cumsum(-1).flip(-1) == 1)
    return live(scores.unsqueeze(-1).expand(mask.shape), is_last)


def discounted_returns(
    rewards: Real[Tensor, "B T"], mask: Bool[Tensor, "B T"], *, gamma: Number = 1.0
) -> Float[Tensor, "B T"]:
    """Sum the rewards to come over the unmasked tokens.

    G_t = r_t + γ·G_{t+1}, where t+1 is the next unmasked token: tokens that the policy did not
    produce (tool output) are stepped over without discount and their rewards are dropped.

    Source: Sutton and Barto 2018, eq. 3.9.

    Args:
        rewards: [B, T], reward for each token; masked values are ignored, NaN included.
        mask: [B, T] bool, True on the tokens that the policy sampled; gaps are allowed.
        gamma: discount per sampled token, in [0, 1].

    Returns:
        [B, T] float32 (float64 for float64 input), exactly 0 where masked.

    Raises:
        ValueError: if ``gamma`` is outside [0, 1].
    """
    within("gamma", gamma, 0, 1)
    same_shape("discounted_returns", rewards=rewards, mask=mask)
    (rewards,) = widen(rewards)
    decay_BT = torch.ones_like(rewards).masked_fill(mask, gamma)
    return live(reverse_scan(decay_BT, live(rewards, mask)), mask)


def gae(
    rewards: Real[Tensor, "B T"],
    values: Float[Tensor, "B T"],
    mask: Bool[Tensor, "B T"],
    *,
    gamma: Number = 1.0,
    lam: Number = 0.95,
    bootstrap: Float[Tensor, " B"] | Number | None = None,
) -> tuple[Float[Tensor, "B T"], Float[Tensor, "B T"]]:
    """Estimate generalised advantages over the unmasked tokens.

    A_t = δ_t + γλ·A_{t+1},  δ_t = r_t + γ·V_{t+1} − V_t, where t+1 is the next unmasked token;
    after the last one A = 0 and V is the bootstrap value.

    Source: Schulman et al. 2016, arXiv:1506.02438, eq. 16. Differs from it in treating a response
    as one finite episode, and in stepping over tokens that the policy did not produce (tool
    output): they add no discount and their values and rewards are not read.

    Args:
        rewards: [B, T], reward for each token; masked values are ignored, NaN included.
        values: [B, T], critic value before each token.
        mask: [B, T] bool, True on the tokens that the policy sampled; gaps are allowed.
        gamma: discount per sampled token, in [0, 1].
        lam: trace decay, in [0, 1]; 0 is the one-step TD error, 1 is Monte-Carlo.
        bootstrap: [B] or scalar, value after the last sampled token; None is 0, the end of the
            episode.

    Returns:
        advantages: [B, T] float32 (float64 if an input is), exactly 0 where masked; neither
            normalised nor detached.
        returns: [B, T], advantages + values, exactly 0 where masked.

    Raises:
        ValueError: if ``gamma`` or ``lam`` is outside [0, 1].
    """
    within("gamma", gamma, 0, 1)
    within("lam", lam, 0, 1)
    same_shape("gae", rewards=rewards, values=values, mask=mask)
    rewards, values = widen(rewards, values)
    rewards, values = live(rewards, mask), live(values, mask)
    last_B = as_rows(bootstrap, values)
    delta_BT = live(rewards + gamma * next_live(values, mask, last_B) - values, mask)
    decay_BT = torch.ones_like(values).masked_fill(mask, gamma * lam)
    advantages = live(reverse_scan(decay_BT, delta_BT), mask)
    return advantages, advantages + values


def as_rows(bootstrap: Tensor | Number | None, like_BT: Tensor) -> Tensor:
    """Bring a bootstrap value to [B], in the dtype and on the device of ``like_BT``."""
    if isinstance(bootstrap, Tensor):
        one_per_row("a recurrence", like_BT.shape[0], bootstrap=bootstrap)
        return bootstrap.to(like_BT.dtype)
    return like_BT.new_full((like_BT.shape[0],), 0.0 if bootstrap is None else bootstrap)
