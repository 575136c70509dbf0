"""Policy losses, one value a token; each row depends on that row alone.

They carry no weights: the caller multiplies by ``weights.loss_weights`` and sums. Log-probabilities
of other policies and advantages are constants, detached here, so a forgotten ``detach`` cannot turn
a ratio into 1 with zero gradient.
"""

# Shape suffixes: B = sequences in the batch, T = response tokens (padded on the right).

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from bestiary.ops._common import Number, exp_ratio, live, one_per_row, same_shape, widen
from bestiary.ops.logits import entropy_from_logits, token_logprobs
from bestiary.ops.masking import masked_mean

__all__ = [
    "cispo",
    "clipped_surrogate",
    "entropy_from_logits",
    "gmpo",
    "reinforce",
    "sapo",
    "sequence_surrogate",
    "token_logprobs",
]


def clipped_surrogate(
    logprobs: Float[Tensor, "B T"],
    old_logprobs: Float[Tensor, "B T"],
    advantages: Float[Tensor, "B T"] | Float[Tensor, " B"],
    mask: Bool[Tensor, "B T"] | None = None,
    *,
    clip_low: Number = 0.2,
    clip_high: Number = 0.2,
    dual_clip: Number | None = None,
) -> Float[Tensor, "B T"]:
    """Limit how far one batch moves the policy, token by token (PPO, GRPO, DAPO).

    ℓ = max(−A·ρ, −A·clip(ρ, 1 − ε_low, 1 + ε_high)), ρ = π/π_old; with a dual clip c, where A < 0,
    ℓ = min(ℓ, −A·c).

    Source: Schulman et al. 2017, arXiv:1707.06347, eq. 7; ε_high > ε_low from DAPO,
    arXiv:2503.14476, eq. 8; dual clip from Ye et al. 2020, arXiv:1912.09729.

    Args:
        logprobs: [B, T], log π of the sampled tokens, nats, with gradient.
        old_logprobs: [B, T], log π_old of the same tokens.
        advantages: [B, T], or [B] for one value a sequence.
        mask: [B, T] bool, True on the tokens that count; None takes all.
        clip_low: ε_low, in [0, 1]; 1 is no lower clip.
        clip_high: ε_high, ≥ 0.
        dual_clip: c > 1, bounds the loss of a bad token that became likely; None is none.

    Returns:
        [B, T] float32 (float64 if an input is), exactly 0 where masked.

    Raises:
        ValueError: if a clip range is out of bounds.
    """
    _check_clip(clip_low, clip_high)
    if dual_clip is not None and not dual_clip > 1:
        raise ValueError(f"dual_clip must exceed 1, got {dual_clip}")
    now, old, advantages = _aligned("clipped_surrogate", logprobs, old_logprobs, advantages, mask)
    ratio_BT = exp_ratio(now - old)
    loss = _pessimistic(ratio_BT, advantages, clip_low, clip_high)
    if dual_clip is not None:
        loss = torch.where(advantages < 0, torch.minimum(loss, -advantages * dual_clip), loss)
    return loss


def sequence_surrogate(
    logprobs: Float[Tensor, "B T"],
    old_logprobs: Float[Tensor, "B T"],
    advantages: Float[Tensor, "B T"] | Float[Tensor, " B"],
    mask: Bool[Tensor, "B T"],
    *,
    clip_low: Number = 3e-4,
    clip_high: Number = 4e-4,
) -> Float[Tensor, "B T"]:
    """Limit how far one batch moves the policy, sequence by sequence (GSPO).

    ℓ_t = max(−A_t·s_t, −A_t·clip(s_t, 1 − ε_low, 1 + ε_high)),  s_t = sg[s]·π_t/sg[π_t],
    s = exp(mean over the row's tokens of log(π/π_old)).

    Source: Zheng et al. 2025, arXiv:2507.18071, eq. 5, and its GSPO-token form, which has the same
    value and gradient when A is one value a sequence. Weights "seq-mean-token-mean" give the
    paper's objective.

    Args:
        logprobs: [B, T], log π of the sampled tokens, nats, with gradient.
        old_logprobs: [B, T], log π_old of the same tokens.
        advantages: [B, T], or [B] for one value a sequence.
        mask: [B, T] bool, True on the tokens that count.
        clip_low: ε_low, in [0, 1].
        clip_high: ε_high, ≥ 0.

    Returns:
        [B, T] float32 (float64 if an input is), exactly 0 where masked.

    Raises:
        ValueError: if a clip range is out of bounds.
    """
    _check_clip(clip_low, clip_high)
    now, old, advantages = _aligned("sequence_surrogate", logprobs, old_logprobs, advantages, mask)
    mean_B1 = masked_mean((now - old).detach(), mask, dim=-1).unsqueeze(-1)
    ratio_BT = exp_ratio(mean_B1 + (now - now.detach()))
    return live(_pessimistic(ratio_BT, advantages, clip_low, clip_high), mask)


def cispo(
    logprobs: Float[Tensor, "B T"],
    old_logprobs: Float[Tensor, "B T"],
    advantages: Float[Tensor, "B T"] | Float[Tensor, " B"],
    mask: Bool[Tensor, "B T"] | None = None,
    *,
    clip_low: Number = 1.0,
    clip_high: Number = 0.28,
) -> Float[Tensor, "B T"]:
    """Clip the importance weight but keep every token's gradient (CISPO).

    ℓ = −sg[clip(ρ, 1 − ε_low, 1 + ε_high)]·A·log π, ρ = π/π_old.

    Source: MiniMax-M1, arXiv:2506.13585; it sets no lower clip (ε_low = 1) and tunes ε_high.

    Args:
        logprobs: [B, T], log π of the sampled tokens, nats, with gradient.
        old_logprobs: [B, T], log π_old of the same tokens.
        advantages: [B, T], or [B] for one value a sequence.
        mask: [B, T] bool, True on the tokens that count; None takes all.
        clip_low: ε_low, in [0, 1].
        clip_high: ε_high, ≥ 0.

    Returns:
        [B, T] float32 (float64 if an input is), exactly 0 where masked.

    Raises:
        ValueError: if a clip range is out of bounds.
    """
    _check_clip(clip_low, clip_high)
    now, old, advantages = _aligned("cispo", logprobs, old_logprobs, advantages, mask)
    weight_BT = exp_ratio(now.detach() - old).clamp(1 - clip_low, 1 + clip_high)
    return -weight_BT * advantages * now


def sapo(
    logprobs: Float[Tensor, "B T"],
    old_logprobs: Float[Tensor, "B T"],
    advantages: Float[Tensor, "B T"] | Float[Tensor, " B"],
    mask: Bool[Tensor, "B T"] | None = None,
    *,
    tau_pos: Number = 1.0,
    tau_neg: Number = 1.05,
) -> Float[Tensor, "B T"]:
    """Fade a token's gradient smoothly as it leaves the old policy (SAPO).

    ℓ = −A·(4/τ)·sigmoid(τ·(ρ − 1)), ρ = π/π_old, τ = τ_pos where A > 0 and τ_neg elsewhere. At
    ρ = 1 the gradient is that of −A·ρ; the value differs by a constant.

    Source: Gao et al. 2025, arXiv:2511.20347. The paper averages over tokens, then sequences
    ("seq-mean-token-mean").

    Args:
        logprobs: [B, T], log π of the sampled tokens, nats, with gradient.
        old_logprobs: [B, T], log π_old of the same tokens.
        advantages: [B, T], or [B] for one value a sequence.
        mask: [B, T] bool, True on the tokens that count; None takes all.
        tau_pos: τ of good tokens, > 0.
        tau_neg: τ of bad tokens, > 0; larger fades faster.

    Returns:
        [B, T] float32 (float64 if an input is), exactly 0 where masked.

    Raises:
        ValueError: if a temperature is not positive.
    """
    if not (tau_pos > 0 and tau_neg > 0):
        raise ValueError(f"tau_pos and tau_neg must be positive, got {tau_pos} and {tau_neg}")
    now, old, advantages = _aligned("sapo", logprobs, old_logprobs, advantages, mask)
    tau_BT = torch.full_like(advantages, tau_neg).masked_fill(advantages > 0, tau_pos)
    gate_BT = 4 / tau_BT * torch.sigmoid(tau_BT * (exp_ratio(now - old) - 1))
    return -gate_BT * advantages


def gmpo(
    logprobs: Float[Tensor, "B T"],
    old_logprobs: Float[Tensor, "B T"],
    advantages: Float[Tensor, "B T"] | Float[Tensor, " B"],
    mask: Bool[Tensor, "B T"],
    *,
    clip_low: Number = 0.4,
    clip_high: Number = 0.4,
) -> Float[Tensor, "B T"]:
    """Average ratios geometrically, after a pessimistic clip of each token (GMPO).

    ℓ_t = −Ā·exp(mean over the row's tokens of c_t), the same on each token of the row, with
    c_t = min(d_t, clip(d_t)) where A ≥ 0 and max(d_t, clip(d_t)) where A < 0,
    d_t = log(π/π_old), clip to [−ε_low, ε_high], Ā the mean advantage of the row.

    Source: Zhao et al. 2025, arXiv:2507.20673, which clips ρ to (e^−0.4, e^0.4). Weights
    "seq-mean-token-mean" give its objective.

    Args:
        logprobs: [B, T], log π of the sampled tokens, nats, with gradient.
        old_logprobs: [B, T], log π_old of the same tokens.
        advantages: [B, T], or [B] for one value a sequence.
        mask: [B, T] bool, True on the tokens that count.
        clip_low: lower bound of the log ratio, nats, ≥ 0.
        clip_high: upper bound of the log ratio, nats, ≥ 0.

    Returns:
        [B, T] float32 (float64 if an input is), exactly 0 where masked.

    Raises:
        ValueError: if a bound is negative.
    """
    if not (clip_low >= 0 and clip_high >= 0):
        raise ValueError(f"clip bounds must not be negative, got {clip_low} and {clip_high}")
    now, old, advantages = _aligned("gmpo", logprobs, old_logprobs, advantages, mask)
    d_BT = now - old
    clipped_BT = d_BT.clamp(-clip_low, clip_high)
    cautious_BT = torch.where(
        advantages < 0, torch.maximum(d_BT, clipped_BT), torch.minimum(d_BT, clipped_BT)
    )
    ratio_B = exp_ratio(masked_mean(cautious_BT, mask, dim=-1))
    loss_B = -masked_mean(advantages, mask, dim=-1) * ratio_B
    return live(loss_B.unsqueeze(-1).expand_as(now), mask)


def reinforce(
    logprobs: Float[Tensor, "B T"],
    advantages: Float[Tensor, "B T"] | Float[Tensor, " B"],
    mask: Bool[Tensor, "B T"] | None = None,
) -> Float[Tensor, "B T"]:
    """Score-function loss without ratio or clip.

    ℓ = −A·log π; its gradient is unbiased on samples of the current policy.

    Source: Williams 1992, doi:10.1007/BF00992696; with A = r − r_greedy it is ReMax,
    arXiv:2310.10505.

    Args:
        logprobs: [B, T], log π of the sampled tokens, nats, with gradient.
        advantages: [B, T], or [B] for one value a sequence.
        mask: [B, T] bool, True on the tokens that count; None takes all.

    Returns:
        [B, T] float32 (float64 if an input is), exactly 0 where masked.
    """
    now, _, advantages = _aligned("reinforce", logprobs, logprobs, advantages, mask)
    return -advantages * now


def _check_clip(low: Number, high: Number) -> None:
    if not (0 <= low <= 1 and high >= 0):
        raise ValueError(f"need 0 <= clip_low <= 1 and clip_high >= 0, got {low} and {high}")


def _aligned(
    op: str, logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, mask: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Bring the inputs to [B, T] and one dtype, 0 where masked, constants detached."""
    if advantages.dim() == 1:
        one_per_row(op, logprobs.shape[0], advantages=advantages)
        advantages = advantages.unsqueeze(-1).expand_as(logprobs)
    same_shape(op, logprobs=logprobs, old_logprobs=old_logprobs, advantages=advantages, mask=mask)
    now, old, advantages = widen(logprobs, old_logprobs.detach(), advantages.detach())
    return live(now, mask), live(old, mask), live(advantages, mask)


def _pessimistic(ratio: Tensor, advantages: Tensor, low: Number, high: Number) -> Tensor:
    return torch.maximum(-advantages * ratio, -advantages * ratio.clamp(1 - low, 1 + high))
