"""GPT-2: learned positions, layer norm, one fused projection.

Shape suffixes: t = tokens, Hq = heads, D = head size.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch.nn.functional as F

from bestiary.engines.local.linear import Linear, make_linear

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    from torch import Tensor

    from bestiary.engines.local.network import Attend, Weights


def supports(architecture: str, config: Any) -> bool:
    """Whether everything that the config asks for is in this implementation."""
    return (
        architecture == "GPT2LMHeadModel"
        and not config.add_cross_attention
        and not config.reorder_and_upcast_attn
        and not config.scale_attn_by_inverse_layer_idx
    )


@dataclass(frozen=True, slots=True)
class _Norm:
    weight: "Tensor"
    bias: "Tensor"


@dataclass(frozen=True, slots=True)
class _Layer:
    norm_1: _Norm
    qkv: Linear
    out: Linear
    norm_2: _Norm
    up: Linear
    down: Linear


class GPT2Network:
    """The checkpoint stores projections as [in, out]; they are transposed when loaded."""

    def __init__(self, config: Any, device: "torch.device") -> None:
        from transformers.activations import ACT2FN

        self.layers: int = config.n_layer
        self.heads: int = config.n_head
        self.kv_heads: int = config.n_head
        self.head_dim: int = config.n_embd // config.n_head
        self.scale = self.head_dim**-0.5 if config.scale_attn_weights else 1.0
        self.eps: float = config.layer_norm_epsilon
        self.size = (int(config.n_embd),)
        self.tied: bool = config.tie_word_embeddings
        self.activation: Callable[[Tensor], Tensor] = ACT2FN[config.activation_function]

    def load(self, weights: "Weights") -> None:
        """Transpose the projections."""
        self.embedding = weights["transformer.wte.weight"]
        self.positions = weights["transformer.wpe.weight"]
        self.norm = _norm(weights, "transformer.ln_f")
        self.head = make_linear(self.embedding if self.tied else weights["lm_head.weight"])
        self.blocks = []
        for i in range(self.layers):
            at = f"transformer.h.{i}."
            self.blocks.append(
                _Layer(
                    norm_1=_norm(weights, at + "ln_1"),
                    qkv=_conv(weights, at + "attn.c_attn"),
                    out=_conv(weights, at + "attn.c_proj"),
                    norm_2=_norm(weights, at + "ln_2"),
                    up=_conv(weights, at + "mlp.c_fc"),
                    down=_conv(weights, at + "mlp.c_proj"),
                )
            )

    def hidden(self, tokens: "Tensor", positions: "Tensor", attend: "Attend") -> "Tensor":
        """[t, H] before the final norm; ``tokens`` and ``positions`` are [t]."""
        x = F.embedding(tokens, self.embedding) + F.embedding(positions, self.positions)
        for i, layer in enumerate(self.blocks):
            qkv = layer.qkv(self._normed(x, layer.norm_1)).unflatten(-1, (-1, self.head_dim))
            mixed = attend(i, qkv[:, : self.heads], qkv[:, self.heads :])
            x = layer.out(mixed).add_(x)
            inner = self.activation(layer.up(self._normed(x, layer.norm_2)))
            x = layer.down(inner).add_(x)
        return x

    def logits(self, hidden: "Tensor") -> "Tensor":
        """[t, V] float32."""
        return self.head(self._normed(hidden, self.norm)).float()

    def _normed(self, x: "Tensor", norm: _Norm) -> "Tensor":
        return F.layer_norm(x, self.size, norm.weight, norm.bias, self.eps)


def _norm(weights: "Weights", name: str) -> _Norm:
    return _Norm(weights[name + ".weight"], weights[name + ".bias"])


def _conv(weights: "Weights", name: str) -> Linear:
    return make_linear(weights[name + ".weight"].t().contiguous(), weights[name + ".bias"])
