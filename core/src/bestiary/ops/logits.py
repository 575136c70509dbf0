"""Log-probabilities and entropies from logits, without a float32 copy of all logits.

Vocabularies are large: the float32 log-softmax of one batch can exceed the model. Forward and
backward therefore work through blocks of rows, and only the logits themselves are kept.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from bestiary.ops._common import Number

_BLOCK_ELEMENTS = 1 << 22
"""Logits of one block: 16 MiB in float32."""

_Index = tuple[int | slice, ...]


def token_logprobs(
    logits: Float[Tensor, "*shape V"], ids: Int[Tensor, "*shape"], temperature: Number = 1.0
) -> Float[Tensor, "*shape"]:
    """Log-probability of each token under the policy that samples at a temperature.

    log softmax(z / τ)[id]. The caller aligns them: the token at position p belongs to the logits of
    position p − 1.

    Args:
        logits: [..., V], raw logits z; not changed. −inf is an impossible token.
        ids: [...] int64, the tokens, in [0, V) at masked positions too.
        temperature: τ of the sampler, > 0.

    Returns:
        [...] nats, float32 (float64 for float64 input).

    Raises:
        ValueError: if the temperature is not positive or the shapes disagree.
    """
    _check(logits, temperature)
    if logits.shape[:-1] != ids.shape:
        raise ValueError(
            f"token_logprobs needs one id for each row of logits, got logits {tuple(logits.shape)} "
            f"and ids {tuple(ids.shape)}"
        )
    result: Tensor = _TokenLogprobs.apply(  # type: ignore[no-untyped-call] # torch does not type it
        logits, ids.long(), float(temperature)
    )
    return result


def entropy_from_logits(
    logits: Float[Tensor, "*shape V"], temperature: Number = 1.0
) -> Float[Tensor, "*shape"]:
    """Entropy of the policy that samples at a temperature.

    −Σ_v p_v·log p_v with p = softmax(z / τ).

    Args:
        logits: [..., V], raw logits z; not changed. −inf is an impossible token and adds 0.
        temperature: τ of the sampler, > 0.

    Returns:
        [...] nats, float32 (float64 for float64 input).

    Raises:
        ValueError: if the temperature is not positive.
    """
    _check(logits, temperature)
    result: Tensor = _Entropy.apply(  # type: ignore[no-untyped-call] # torch does not type it
        logits, float(temperature)
    )
    return result


def probs_squared(
    logits: Float[Tensor, "*shape V"], temperature: Number = 1.0
) -> Float[Tensor, "*shape"]:
    """Probability that two tokens drawn at a temperature are equal.

    Σ_v p_v² with p = softmax(z / τ); without gradient. The squared norm of the score of token a is
    1 − 2·p_a + Σ_v p_v² (with respect to the logits), which optimal baselines weigh by.

    Args:
        logits: [..., V], raw logits z; not changed.
        temperature: τ of the sampler, > 0.

    Returns:
        [...] in (0, 1], float32 (float64 for float64 input).

    Raises:
        ValueError: if the temperature is not positive.
    """
    _check(logits, temperature)
    result = _empty_rows(logits)
    with torch.no_grad():
        for block in _blocks(logits.shape):
            result[block] = (2.0 * _log_softmax(logits[block], temperature)).exp().sum(-1)
    return result


def full_kl(
    logits: Float[Tensor, "*shape V"],
    ref_logits: Float[Tensor, "*shape V"],
    temperature: Number = 1.0,
) -> Float[Tensor, "*shape"]:
    """KL of the policy to a reference over the whole vocabulary, both at a temperature.

    Σ_v p_v·(log p_v − log q_v) with p = softmax(z / τ) and q = softmax(z_ref / τ): exact where the
    estimators of ``ops.kl`` are estimates from the token that was drawn. Differentiable in the
    policy's logits alone: ∂/∂z_v = p_v·(log p_v − log q_v − KL)/τ.

    Args:
        logits: [..., V], the policy's raw logits; not changed. −inf is an impossible token.
        ref_logits: [..., V], the reference's; without gradient. A token that only the reference
            excludes makes the KL infinite.
        temperature: τ of the sampler, > 0.

    Returns:
        [...] nats, at least 0 up to rounding, float32 (float64 for float64 input).

    Raises:
        ValueError: if the temperature is not positive or the shapes disagree.
    """
    _check(logits, temperature)
    if logits.shape != ref_logits.shape:
        raise ValueError(
            f"full_kl needs logits of one shape, got {tuple(logits.shape)} and "
            f"{tuple(ref_logits.shape)}"
        )
    result: Tensor = _FullKL.apply(  # type: ignore[no-untyped-call] # torch does not type it
        logits, ref_logits.detach(), float(temperature)
    )
    return result


def _check(logits: Tensor, temperature: Number) -> None:
    if not (temperature > 0 and math.isfinite(temperature)):
        raise ValueError(f"temperature must be positive, got {temperature}")
    if logits.dim() == 0:
        raise ValueError("logits need a vocabulary dim")


def _blocks(shape: Sequence[int], done: _Index = ()) -> Iterator[_Index]:
    """Indices that cut [..., V] into blocks; indexing never copies, contiguous or not."""
    if len(shape) == 1 or math.prod(shape) <= _BLOCK_ELEMENTS:
        yield done
        return
    inner = math.prod(shape[1:])
    if inner > _BLOCK_ELEMENTS and len(shape) > 2:
        for i in range(shape[0]):
            yield from _blocks(shape[1:], (*done, i))
        return
    step = max(1, _BLOCK_ELEMENTS // inner)
    for i in range(0, shape[0], step):
        yield (*done, slice(i, i + step))


def _log_softmax(block: Tensor, temperature: float) -> Tensor:
    dtype = torch.promote_types(block.dtype, torch.float32)
    scaled = block.to(dtype) if temperature == 1.0 else block.to(dtype) / temperature
    return torch.log_softmax(scaled, -1)


def _empty_rows(logits: Tensor) -> Tensor:
    dtype = torch.promote_types(logits.dtype, torch.float32)
    return torch.empty(logits.shape[:-1], dtype=dtype, device=logits.device)


class _TokenLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401 - autograd's context is untyped
        logits: Tensor,
        ids: Tensor,
        temperature: float,
    ) -> Tensor:
        ctx.save_for_backward(logits, ids)
        ctx.temperature = temperature
        out = _empty_rows(logits)
        for at in _blocks(logits.shape):
            logprobs = _log_softmax(logits[at], temperature)
            out[at] = logprobs.gather(-1, ids[at].unsqueeze(-1)).squeeze(-1)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # noqa: ANN401 - as above
        # d log p_id / dz = (1[v = id] − p_v) / τ
        logits, ids = ctx.saved_tensors
        result = torch.empty_like(logits)
        for at in _blocks(logits.shape):
            g = grad[at].unsqueeze(-1) / ctx.temperature
            block = _log_softmax(logits[at], ctx.temperature).exp_().mul_(-g)
            result[at] = block.scatter_add_(-1, ids[at].unsqueeze(-1), g)
        return result, None, None


class _Entropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, temperature: float) -> Tensor:  # noqa: ANN401 - as above
        out = _empty_rows(logits)
        for at in _blocks(logits.shape):
            out[at] = _neg_plogp(_log_softmax(logits[at], temperature)).sum(-1)
        ctx.save_for_backward(logits, out)
        ctx.temperature = temperature
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # noqa: ANN401 - as above
        # dH/dz = −p·(log p + H) / τ
        logits, entropy = ctx.saved_tensors
        result = torch.empty_like(logits)
        for at in _blocks(logits.shape):
            logprobs = _log_softmax(logits[at], ctx.temperature)
            slope = _neg_plogp(logprobs) - logprobs.exp() * entropy[at].unsqueeze(-1)
            result[at] = slope * (grad[at].unsqueeze(-1) / ctx.temperature)
        return result, None


class _FullKL(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401 - as above
        logits: Tensor,
        ref_logits: Tensor,
        temperature: float,
    ) -> Tensor:
        out = _empty_rows(logits)
        for at in _blocks(logits.shape):
            out[at] = _kl_parts(logits[at], ref_logits[at], temperature)[1].sum(-1)
        ctx.save_for_backward(logits, ref_logits, out)
        ctx.temperature = temperature
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # noqa: ANN401 - as above
        logits, ref_logits, kl = ctx.saved_tensors
        result = torch.empty_like(logits)
        for at in _blocks(logits.shape):
            probs, parts = _kl_parts(logits[at], ref_logits[at], ctx.temperature)
            slope = parts - probs * kl[at].unsqueeze(-1)
            result[at] = slope * (grad[at].unsqueeze(-1) / ctx.temperature)
        return result, None, None


def _kl_parts(logits: Tensor, ref_logits: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """(p, p·(log p − log q)), the second 0 for a token that the policy excludes."""
    logprobs = _log_softmax(logits, temperature)
    probs = logprobs.exp()
    gap = logprobs - _log_softmax(ref_logits, temperature)
    return probs, torch.where(probs > 0, probs * gap, 0.0)


def _neg_plogp(logprobs: Tensor) -> Tensor:
    """−p·log p, 0 for an impossible token, where the product would be 0·inf."""
    return -logprobs.exp() * logprobs.clamp(min=torch.finfo(logprobs.dtype).min)
