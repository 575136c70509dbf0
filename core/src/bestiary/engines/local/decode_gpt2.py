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


def supports(architecture: str, config: Any) -> bool:  # noqa: ANN401 - transformers
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


@dataclass(frozen=True, slots=True)
class _Loaded:
    """Fused weights."""

    embedding: "Tensor"
    positions: "Tensor"
    blocks: list[_Layer]
    norm: _Norm
    head: Linear


class GPT2Network:
    """The checkpoint stores projections as [in, out]; they are transposed when loaded."""

    def __init__(self, config: Any, device: "torch.device") -> None:  # noqa: ANN401 - transformers
        from transformers.activations import ACT2FN

        self.loaded: _Loaded | None = None
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
        embedding = weights["transformer.wte.weight"]
        blocks = []
        for i in range(self.layers):
            at = f"transformer.h.{i}."
            blocks.append(
                _Layer(
                    norm_1=_norm(weights, at + "ln_1"),
                    qkv=self._fused(weights, at + "attn.c_attn"),
                    out=_conv(weights, at + "attn.c_proj"),
                    norm_2=_norm(weights, at + "ln_2"),
                    up=_conv(weights, at + "mlp.c_fc"),
                    down=_conv(weights, at + "mlp.c_proj"),
                )
            )
        self.loaded = _Loaded(
            embedding=embedding,
            positions=weights["transformer.wpe.weight"],
            blocks=blocks,
            norm=_norm(weights, "transformer.ln_f"),
            head=make_linear(embedding if self.tied else weights["lm_head.weight"]),
        )

    def _fused(self, weights: "Weights", name: str) -> Linear:
        """The projection with its outputs ordered head by head: query, key, value."""
        weight, bias = weights[name + ".weight"].t(), weights[name + ".bias"]
        parts = (3, self.heads, self.head_dim)
        weight = weight.reshape(*parts, -1).transpose(0, 1).flatten(0, 2)
        return make_linear(weight, bias.view(parts).transpose(0, 1).flatten())

    def hidden(self, tokens: "Tensor", positions: "Tensor", attend: "Attend") -> "Tensor":
        """[t, H] before the final norm; ``tokens`` and ``positions`` are [t]."""
        assert self.loaded is not None  # noqa: S101 - own invariant
        loaded = self.loaded
        x = F.embedding(tokens, loaded.embedding) + F.embedding(positions, loaded.positions)
        shape = (-1, self.heads, 3, self.head_dim)
        for i, layer in enumerate(loaded.blocks):
            qkv = layer.qkv(self._normed(x, layer.norm_1)).view(shape)
            x = layer.out(attend(i, qkv)).add_(x)
            inner = self.activation(layer.up(self._normed(x, layer.norm_2)))
            x = layer.down(inner).add_(x)
        return x

    def logits(self, hidden: "Tensor") -> "Tensor":
        """[t, V] float32."""
        assert self.loaded is not None  # noqa: S101 - own invariant
        return self.loaded.head(self._normed(hidden, self.loaded.norm)).float()

    def _normed(self, x: "Tensor", norm: _Norm) -> "Tensor":
        return F.layer_norm(x, self.size, norm.weight, norm.bias, self.eps)


def _norm(weights: "Weights", name: str) -> _Norm:
    return _Norm(weights[name + ".weight"], weights[name + ".bias"])


def _conv(weights: "Weights", name: str) -> Linear:
    return make_linear(weights[name + ".weight"].t().contiguous(), weights[name + ".bias"])
