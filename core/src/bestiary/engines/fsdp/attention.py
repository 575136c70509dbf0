"""Attention over a packed sequence, as a transformers attention function.

One autograd node for each layer: blocks are read and written as slices of the packed tensors, so
that neither the gathers nor the sums over the rows of a prompt go through the autograd graph.
"""

# Shape suffixes: N packed tokens, H query heads, K key heads, D width of a head; in a block: B
# rows, L queries of a row, S keys of a row, R = H / K query heads of a key head.

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from bestiary.engines.fsdp.packing import AttentionPlan, Block, Stack

IMPLEMENTATION = "bestiary_packed"

_SHORT = 64
"""Queries of a row up to which explicit matrix products are faster than the fused kernel on CPU."""


def register() -> None:
    """Make the implementation known to transformers; without a plan it is plain SDPA."""
    AttentionInterface.register(IMPLEMENTATION, packed_attention)
    AttentionMaskInterface.register(IMPLEMENTATION, sdpa_mask)


def packed_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    packing: AttentionPlan | None = None,
    **kwargs: Any,  # noqa: ANN401 - what transformers hands to every attention function
) -> tuple[Tensor, None]:
    """Attend as the plan says; shapes and return value are those of transformers.

    Args:
        module: the attention layer.
        query: [1, H, N, D].
        key: [1, K, N, D].
        value: [1, K, N, D].
        attention_mask: ignored where there is a plan.
        scaling: of the scores; None is 1/√D.
        dropout: must be 0 with a plan.
        packing: the plan.
        kwargs: handed on where there is no plan.

    Returns:
        ([1, N, H, D], None).
    """
    if packing is None:
        out: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
        return out
    q_NHD, k_NKD, v_NKD = (x[0].transpose(0, 1) for x in (query, key, value))
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    return attend(q_NHD, k_NKD, v_NKD, packing, scale)[None], None


def attend(
    q_NHD: Tensor, k_NKD: Tensor, v_NKD: Tensor, plan: AttentionPlan, scale: float
) -> Tensor:
    """Packed attention.

    Args:
        q_NHD: [N, H, D] queries.
        k_NKD: [N, K, D] keys.
        v_NKD: [N, K, D] values.
        plan: the layout of the N tokens.
        scale: of the scores.

    Returns:
        [N, H, D].
    """
    out: Tensor = _PackedAttention.apply(q_NHD, k_NKD, v_NKD, plan, scale)  # type: ignore[no-untyped-call] # torch does not type it
    return out


class _PackedAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401 - autograd's context is untyped
        q: Tensor,
        k: Tensor,
        v: Tensor,
        plan: AttentionPlan,
        scale: float,
    ) -> Tensor:
        grad = any(ctx.needs_input_grad)
        out, saved = _forward(q, k, v, plan, scale, grad)
        ctx.plan, ctx.scale = plan, scale
        ctx.saved = saved if plan.keep else None
        ctx.save_for_backward(q, k, v)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:  # noqa: ANN401
        q, k, v = ctx.saved_tensors
        plan, scale = ctx.plan, ctx.scale
        saved = ctx.saved
        if saved is None:
            saved = _forward(q, k, v, plan, scale, True)[1]
        dq, dk, dv = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, v))
        prompts = plan.prompts
        dqp, dkp, dvp = saved[0].backward(_rows(grad, prompts))
        # Sums over the responses of each prompt arrive here, on top of the prompt's own part.
        dkp, dvp = dkp.contiguous(), dvp.contiguous()
        for block, part in zip(plan.blocks, saved[1:], strict=True):
            dqb, dkb, dvb = part.backward(_rows(grad, block.rows))
            _put(dq, block.rows, dqb)
            _put(dk, block.rows, _split(dkb, dkp, block))
            _put(dv, block.rows, _split(dvb, dvp, block))
        _put(dq, prompts, dqp)
        _put(dk, prompts, dkp)
        _put(dv, prompts, dvp)
        ctx.saved = None
        return dq, dk, dv, None, None


def _forward(
    q: Tensor, k: Tensor, v: Tensor, plan: AttentionPlan, scale: float, grad: bool
) -> tuple[Tensor, list["_Short | _Fused"]]:
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    kp, vp = _rows(k, plan.prompts), _rows(v, plan.prompts)
    own, o = _Fused.forward(_rows(q, plan.prompts), kp, vp, None, scale, grad)
    _put(out, plan.prompts, o)
    saved: list[_Short | _Fused] = [own]
    for block in plan.blocks:
        short = q.device.type == "cpu" and block.rows.width <= _SHORT and q.dtype != torch.bfloat16
        kind = _Short if short else _Fused
        kb = _join(kp, _rows(k, block.rows), block, heads_first=short)
        vb = _join(vp, _rows(v, block.rows), block, heads_first=short)
        part, o = kind.forward(_rows(q, block.rows), kb, vb, block.mask, scale, grad)
        _put(out, block.rows, o)
        saved.append(part)
    return out, saved


# --------------------------------------------------------------------------- rows of a stack


def _rows(x_NHD: Tensor, stack: Stack) -> Tensor:
    """The stack's tokens as [B, L, H, D]: a view, or a copy padded with zeros."""
    part = x_NHD[stack.start : stack.start + stack.size]
    shape = (stack.count, stack.width, *part.shape[1:])
    if stack.slot is None:
        return part.view(shape)
    padded = x_NHD.new_zeros((stack.count * stack.width, *part.shape[1:]))
    return padded.index_copy_(0, stack.slot, part).view(shape)


def _put(x_NHD: Tensor, stack: Stack, rows: Tensor) -> None:
    """Write [B, L, H, D] back, without the padding."""
    part = x_NHD[stack.start : stack.start + stack.size]
    if stack.slot is None:
        part.view(stack.count, stack.width, *part.shape[1:]).copy_(rows)
    else:
        torch.index_select(rows.flatten(0, 1), 0, stack.slot, out=part)


def _join(prompts: Tensor, own: Tensor, block: Block, *, heads_first: bool) -> Tensor:
    """[B, S, K, D]: each row's prompt, then its own tokens; heads outermost in memory if asked."""
    (b, n, heads, d), width = own.shape, block.width
    if heads_first:
        joined = own.new_empty((b, heads, width + n, d)).transpose(1, 2)
    else:
        joined = own.new_empty((b, width + n, heads, d))
    if block.span is None:
        joined[:, :width] = prompts[:, :width].index_select(0, block.prompt)
    else:
        first, count, each = block.span
        grouped = joined.view(count, each, *joined.shape[1:])
        grouped[:, :, :width] = prompts[first : first + count, None, :width]
    joined[:, width:] = own
    return joined


def _split(grad: Tensor, prompts: Tensor, block: Block) -> Tensor:
    """Add a block's gradient to the prompts and return that of its own tokens."""
    part = grad[:, : block.width]
    if block.span is None:
        if block.width == prompts.shape[1]:
            prompts.index_add_(0, block.prompt, part)
        else:
            prompts[:, : block.width] += torch.zeros_like(prompts[:, : block.width]).index_add_(
                0, block.prompt, part
            )
    else:
        first, count, each = block.span
        prompts[first : first + count, : block.width] += part.view(
            count, each, *part.shape[1:]
        ).sum(1)
    return grad[:, block.width :]


# --------------------------------------------------------------------------- the two kernels


class _Fused(NamedTuple):
    """Scaled dot-product attention of torch, on leaves of a graph of its own."""

    q: Tensor
    k: Tensor
    v: Tensor
    out: Tensor

    @classmethod
    def forward(
        cls, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, grad: bool
    ) -> "tuple[_Fused, Tensor]":
        """[B, L, H, D] each; causal where there is no mask."""
        q, k, v = (x.transpose(1, 2).detach().requires_grad_(grad) for x in (q, k, v))
        with torch.set_grad_enabled(grad):
            out = F.scaled_dot_product_attention(
                q,
                k,
                v,
                attn_mask=mask,
                is_causal=mask is None,
                scale=scale,
                enable_gqa=q.shape[1] != k.shape[1],
            )
        return cls(q, k, v, out), out.detach().transpose(1, 2)

    def backward(self, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients in the layout of the inputs."""
        found = torch.autograd.grad(self.out, (self.q, self.k, self.v), grad.transpose(1, 2))
        dq, dk, dv = (x.transpose(1, 2) for x in found)
        return dq, dk, dv


class _Short(NamedTuple):
    """Explicit matrix products, for rows of few tokens.

    P = softmax(scale·Q·Kᵀ), O = P·V; dV = Pᵀ·dO, dS = P∘(dO·Vᵀ − rowsum(dO∘O)).
    """

    q: Tensor
    k: Tensor
    v: Tensor
    p: Tensor
    out: Tensor
    scale: float

    @classmethod
    def forward(
        cls, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, grad: bool
    ) -> "tuple[_Short, Tensor]":
        """[B, L, H, D] each, heads outermost in the memory of k and v."""
        del grad
        b, n, heads, d = q.shape
        kv_heads, s = k.shape[2], k.shape[1]
        group = heads // kv_heads
        # [B·K, R·L, D]: the query heads of one key head share its keys.
        q_bld = q.transpose(1, 2).reshape(b * kv_heads, group * n, d)
        k_bsd, v_bsd = (x.transpose(1, 2).reshape(b * kv_heads, s, d) for x in (k, v))
        scores = torch.bmm(q_bld, k_bsd.transpose(1, 2))
        if scale != 1.0:
            scores.mul_(scale)
        if mask is not None:
            scores.view(b, heads, n, s).masked_fill_(~mask, float("-inf"))
        p = torch.softmax(scores, -1)
        out = torch.bmm(p, v_bsd)
        return cls(q_bld, k_bsd, v_bsd, p, out, scale), out.view(b, heads, n, d).transpose(1, 2)

    def backward(self, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients in the layout of the inputs."""
        b, n, heads, d = grad.shape
        do = grad.transpose(1, 2).reshape(self.out.shape)
        dv = torch.bmm(self.p.transpose(1, 2), do)
        ds = torch.bmm(do, self.v.transpose(1, 2))
        ds.sub_((do * self.out).sum(-1, keepdim=True)).mul_(self.p)
        if self.scale != 1.0:
            ds.mul_(self.scale)
        dq = torch.bmm(ds, self.k)
        dk = torch.bmm(ds.transpose(1, 2), self.q)
        kv = (b, -1, self.k.shape[1], d)
        return (
            dq.view(b, heads, n, d).transpose(1, 2),
            dk.view(kv).transpose(1, 2),
            dv.view(kv).transpose(1, 2),
        )
