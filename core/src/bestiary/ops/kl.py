"""Estimates of the KL divergence from a reference policy, as a number and as a loss."""

from typing import Literal, get_args

from jaxtyping import Bool, Float
from torch import Tensor

from bestiary.ops._common import MAX_LOG_RATIO, Number, exp_ratio, live, one_of, same_shape, widen

KLKind = Literal["k1", "k2", "k3", "abs"]
KLGradient = Literal["value", "straight_through_k2", "ratio_weighted"]


def kl_estimate(
    logprobs: Float[Tensor, "*shape"],
    ref_logprobs: Float[Tensor, "*shape"],
    mask: Bool[Tensor, "*shape"] | None = None,
    *,
    kind: KLKind = "k1",
    clamp: Number | None = None,
) -> Float[Tensor, "*shape"]:
    """Estimate KL(π‖ref) at each sampled token.

    With d = log π − log ref: k1 = d, k2 = d²/2, k3 = e^−d − 1 + d, abs = |d|. Over samples of π the
    values of k1 and k3 are unbiased; k3 is never negative.

    Source: Schulman 2020, joschu.net/blog/kl-approx.html; k3 is eq. 4 of GRPO, arXiv:2402.03300.

    Args:
        logprobs: log π of each sampled token, nats; any shape.
        ref_logprobs: log ref of the same tokens.
        mask: bool, the same shape; None takes every token.
        kind: the estimator.
        clamp: bound of the estimate's size, nats; None leaves it.

    Returns:
        same shape, nats, float32 (float64 if an input is), 0 where masked. k3 cuts d at −20, so
        that a token which the policy has all but dropped cannot overflow.

    Raises:
        ValueError: if ``kind`` is unknown.
    """
    one_of("kind", kind, get_args(KLKind))
    same_shape("kl_estimate", logprobs=logprobs, ref_logprobs=ref_logprobs, mask=mask)
    logprobs, ref_logprobs = widen(logprobs, ref_logprobs)
    estimate = _estimate(live(logprobs - ref_logprobs, mask), kind)
    return estimate if clamp is None else estimate.clamp(-clamp, clamp)


def kl_loss(
    logprobs: Float[Tensor, "*shape"],
    ref_logprobs: Float[Tensor, "*shape"],
    mask: Bool[Tensor, "*shape"] | None = None,
    *,
    kind: KLKind = "k3",
    clamp: Number | None = None,
    gradient: KLGradient = "value",
    old_logprobs: Float[Tensor, "*shape"] | None = None,
) -> Float[Tensor, "*shape"]:
    """Make a KL estimate a loss whose gradient is a deliberate choice.

    "value" differentiates the estimate. On samples of π the expected gradient is then that of
    KL(π‖ref) for k2, of the opposite divergence KL(ref‖π) for k3 and zero for k1, which is refused.
    "straight_through_k2" has the value of ``kind`` and the gradient of k2.
    "ratio_weighted" is ρ·estimate with ρ = π/π_old differentiated too; for k1 and k3 its expected
    gradient over samples of π_old is that of KL(π‖ref).

    Source: GRPO, arXiv:2402.03300, eq. 3 and 4 (k3, "value"; the default); DeepSeek-V3.2,
    arXiv:2512.02556, eq. 7 ("ratio_weighted").

    Args:
        logprobs: log π of each sampled token, nats, with gradient; any shape.
        ref_logprobs: log ref of the same tokens, a constant (detached here).
        mask: bool, the same shape; None takes every token.
        kind: the estimator, see ``kl_estimate``.
        clamp: bound of the estimate's size, nats; beyond it "value" has no gradient. None is none.
        gradient: which gradient the loss has.
        old_logprobs: log-probabilities under the policy that sampled, for "ratio_weighted", a
            constant (detached here); None means that π itself sampled: the ratio is 1.

    Returns:
        same shape, nats, float32 (float64 if an input is), 0 where masked.

    Raises:
        ValueError: if an option is unknown, or for k1 with "value".
    """
    one_of("gradient", gradient, get_args(KLGradient))
    if kind == "k1" and gradient == "value":
        raise ValueError(
            "kl_loss(kind='k1', gradient='value') has zero gradient in expectation (the score's "
            "mean is 0), so it would only add noise; use gradient='straight_through_k2' or "
            "'ratio_weighted', another kind, or put k1 into the reward"
        )
    ref_logprobs = ref_logprobs.detach()
    estimate = kl_estimate(logprobs, ref_logprobs, mask, kind=kind, clamp=clamp)
    if gradient == "value":
        return estimate
    if gradient == "straight_through_k2":
        k2 = kl_estimate(logprobs, ref_logprobs, mask, kind="k2")
        return estimate.detach() + (k2 - k2.detach())
    old_logprobs = logprobs.detach() if old_logprobs is None else old_logprobs.detach()
    same_shape("kl_loss", logprobs=logprobs, old_logprobs=old_logprobs)
    now, old, _ = widen(logprobs, old_logprobs, ref_logprobs)
    return exp_ratio(live(now - old, mask)) * estimate


def _estimate(d: Tensor, kind: str) -> Tensor:
    if kind == "k1":
        return d
    if kind == "k2":
        return d.square() / 2
    if kind == "abs":
        return d.abs()
    # d itself is cut, not only the exponent: otherwise the gradient would change sign there.
    d = d.clamp(min=-MAX_LOG_RATIO)
    return (-d).exp() - 1 + d
