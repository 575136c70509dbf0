"""The Llama family: Llama, Mistral, Qwen2, Qwen3, with full attention and rotary positions.

Shape suffixes: t = tokens, Hq/Hk = query and key heads, D = head size, I = inner size.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from bestiary.engines.local.linear import Linear, make_linear

if TYPE_CHECKING:
    from torch import Tensor

    from bestiary.engines.local.network import Attend, Weights

ARCHITECTURES = frozenset(
    {"LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"}
)
_ROPE_TYPES = frozenset({"default", "linear", "llama3", "yarn"})
"""Those whose frequencies do not depend on the length of the sequence."""


def supports(architecture: str, config: Any) -> bool:
    """Whether everything that the config asks for is in this implementation."""
    rope = dict(getattr(config, "rope_parameters", None) or {})
    windowed = getattr(config, "sliding_window", None) is not None and (
        architecture == "MistralForCausalLM" or getattr(config, "use_sliding_window", False)
    )
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    return (
        architecture in ARCHITECTURES
        and config.hidden_act in ("silu", "swish")
        and not windowed
        and kinds == {"full_attention"}
        and rope.get("rope_type", "default") in _ROPE_TYPES
        and rope.get("partial_rotary_factor", 1.0) == 1.0
        and getattr(config, "partial_rotary_factor", 1.0) in (None, 1.0)
    )


@dataclass(frozen=True, slots=True)
class _Layer:
    norm_1: "Tensor"
    qkv: Linear
    qk_norm: "Tensor | None"
    out: Linear
    norm_2: "Tensor"
    gate_up: Linear
    down: Linear


class LlamaNetwork:
    """Fused projections, and rotary positions as one complex product.

    The checkpoint's rotary layout pairs dimension i with i + D/2. Query and key rows are put in
    the order 0, D/2, 1, D/2+1, … when weights are loaded: scores stay the same, and neighbours
    form complex numbers that one multiplication turns.
    """

    def __init__(self, config: Any, device: torch.device) -> None:
        from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

        self.layers: int = config.num_hidden_layers
        self.heads: int = config.num_attention_heads
        self.kv_heads: int = config.num_key_value_heads or self.heads
        self.head_dim: int = getattr(config, "head_dim", None) or config.hidden_size // self.heads
        self.scale = self.head_dim**-0.5
        self.inner: int = config.intermediate_size
        self.eps: float = config.rms_norm_eps
        self.tied: bool = config.tie_word_embeddings
        rotary = LlamaRotaryEmbedding(config=config)
        everywhere = torch.arange(config.max_position_embeddings).unsqueeze(0)
        cos, sin = rotary(torch.zeros(1), everywhere)
        half = self.head_dim // 2
        self.turns = torch.complex(cos[0, :, :half], sin[0, :, :half]).to(device)
        """[positions, D/2] complex64."""
        self.order = torch.arange(self.head_dim).view(2, half).t().reshape(-1)

    def load(self, weights: "Weights") -> None:
        """Fuse q, k, v and gate, up; the weights are in the compute dtype."""
        self.embedding = weights["model.embed_tokens.weight"]
        self.norm = weights["model.norm.weight"]
        self.size = (self.embedding.shape[1],)
        head = self.embedding if self.tied else weights["lm_head.weight"]
        self.head = make_linear(head)
        self.blocks = [self._layer(weights, f"model.layers.{i}.") for i in range(self.layers)]

    def _layer(self, weights: "Weights", at: str) -> _Layer:
        def rotated(name: str) -> "Tensor | None":
            x = weights.get(at + name)
            if x is None:
                return None
            heads = x.unflatten(0, (-1, self.head_dim))
            return heads[:, self.order.to(x.device)].flatten(0, 1)

        def joined(*parts: "Tensor | None") -> "Tensor | None":
            there = [p for p in parts if p is not None]
            return torch.cat(there) if there else None

        def plain(name: str) -> Linear:
            return make_linear(weights[at + name + ".weight"], weights.get(at + name + ".bias"))

        def need(x: "Tensor | None") -> "Tensor":
            assert x is not None
            return x

        q, k, v = (f"self_attn.{name}_proj." for name in "qkv")
        gate, up = "mlp.gate_proj.", "mlp.up_proj."
        qkv_weight = need(
            joined(rotated(q + "weight"), rotated(k + "weight"), weights.get(at + v + "weight"))
        )
        qkv_bias = joined(rotated(q + "bias"), rotated(k + "bias"), weights.get(at + v + "bias"))
        qk_norm = None
        if at + "self_attn.q_norm.weight" in weights:
            q_norm, k_norm = rotated("self_attn.q_norm.weight"), rotated("self_attn.k_norm.weight")
            qk_norm = torch.cat(
                [
                    need(q_norm).expand(self.heads, self.head_dim),
                    need(k_norm).expand(self.kv_heads, self.head_dim),
                ]
            )
        return _Layer(
            norm_1=weights[at + "input_layernorm.weight"],
            qkv=make_linear(qkv_weight, qkv_bias),
            qk_norm=qk_norm,
            out=plain("self_attn.o_proj"),
            norm_2=weights[at + "post_attention_layernorm.weight"],
            gate_up=make_linear(
                torch.cat([weights[at + gate + "weight"], weights[at + up + "weight"]]),
                joined(weights.get(at + gate + "bias"), weights.get(at + up + "bias")),
            ),
            down=plain("mlp.down_proj"),
        )

    def hidden(self, tokens: "Tensor", positions: "Tensor", attend: "Attend") -> "Tensor":
        """[t, H] before the final norm; ``tokens`` and ``positions`` are [t]."""
        x = F.embedding(tokens, self.embedding)
        turns = self.turns.index_select(0, positions).unsqueeze(1)
        size, eps, inner, rotating = self.size, self.eps, self.inner, self.heads + self.kv_heads
        for i, layer in enumerate(self.blocks):
            qkv = layer.qkv(F.rms_norm(x, size, layer.norm_1, eps)).unflatten(
                -1, (-1, self.head_dim)
            )
            self._rotate(qkv[:, :rotating], turns, layer.qk_norm)
            mixed = attend(i, qkv[:, : self.heads], qkv[:, self.heads :])
            x = layer.out(mixed).add_(x)
            gate_up = layer.gate_up(F.rms_norm(x, size, layer.norm_2, eps))
            gated = F.silu(gate_up[:, :inner]).mul_(gate_up[:, inner:])
            x = layer.down(gated).add_(x)
        return x

    def _rotate(self, qk: "Tensor", turns: "Tensor", norm: "Tensor | None") -> None:
        """Normalise (Qwen3) and turn queries and keys in place; in float32 for other dtypes."""
        if norm is not None:
            qk.copy_(F.rms_norm(qk, (self.head_dim,), eps=self.eps) * norm)
        pairs = qk.unflatten(-1, (-1, 2))
        if qk.dtype == torch.float32:
            torch.view_as_complex(pairs).mul_(turns)
        else:
            turned = torch.view_as_complex(pairs.float()) * turns
            qk.copy_(torch.view_as_real(turned).flatten(-2))

    def logits(self, hidden: "Tensor") -> "Tensor":
        """[t, V] float32."""
        return self.head(F.rms_norm(hidden, self.size, self.norm, self.eps)).float()
