"""The Llama family: Llama, Mistral, Qwen2, Qwen3, with full attention and rotary positions.

Shape suffixes: t = tokens, Hk = key heads, G = query heads for each, D = head size.
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


def supports(architecture: str, config: Any) -> bool:  # noqa: ANN401 - transformers
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
    norm_1: "Tensor | None"
    qkv: Linear
    qk_norm: "Tensor | None"
    out: Linear
    norm_2: "Tensor | None"
    gate_up: Linear
    down: Linear


@dataclass(frozen=True, slots=True)
class _Loaded:
    """Fused weights."""

    embedding: "Tensor"
    blocks: list[_Layer]
    norm: "Tensor | None"
    head: Linear


class LlamaNetwork:
    """Fused projections, and rotary positions as one complex product.

    The checkpoint's rotary layout pairs dimension i with i + D/2. Query and key rows are put in
    the order 0, D/2, 1, D/2+1, … when weights are loaded: scores stay the same, and neighbours
    form complex numbers that one multiplication turns. In float32 the weights of the norms are
    multiplied into the projections that follow them; other dtypes round as the checkpoint does.
    """

    def __init__(self, config: Any, device: torch.device) -> None:  # noqa: ANN401 - transformers
        from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

        self.loaded: _Loaded | None = None
        self.layers: int = config.num_hidden_layers
        self.heads: int = config.num_attention_heads
        self.kv_heads: int = config.num_key_value_heads or self.heads
        self.head_dim: int = getattr(config, "head_dim", None) or config.hidden_size // self.heads
        self.scale = self.head_dim**-0.5
        self.group = self.heads // self.kv_heads
        self.inner: int = config.intermediate_size
        self.size: int = config.hidden_size
        self.eps: float = config.rms_norm_eps
        self.eps_tensor = torch.tensor(self.eps, device=device)
        self.tied: bool = config.tie_word_embeddings
        rotary = LlamaRotaryEmbedding(config=config)
        everywhere = torch.arange(config.max_position_embeddings).unsqueeze(0)
        cos, sin = rotary(torch.zeros(1), everywhere)
        half = self.head_dim // 2
        self.turns = torch.complex(cos[0, :, :half], sin[0, :, :half]).to(device)
        """[positions, D/2] complex64."""
        self.order = torch.arange(self.head_dim).view(2, half).t().reshape(-1).to(device)

    # ------------------------------------------------------------------ weights

    def load(self, weights: "Weights") -> None:
        """Fuse q, k, v and gate, up; the weights are in the compute dtype."""
        embedding = weights["model.embed_tokens.weight"]
        head = embedding if self.tied else weights["lm_head.weight"]
        norm, head = _folded(weights["model.norm.weight"], head)
        blocks = [self._layer(weights, f"model.layers.{i}.") for i in range(self.layers)]
        self.loaded = _Loaded(embedding, blocks, norm, make_linear(head))

    def _layer(self, weights: "Weights", at: str) -> _Layer:
        def plain(name: str) -> Linear:
            return make_linear(weights[at + name + ".weight"], weights.get(at + name + ".bias"))

        mlp = at + "mlp."
        norm_1, qkv = _folded(weights[at + "input_layernorm.weight"], self._qkv(weights, at))
        norm_2, gate_up = _folded(
            weights[at + "post_attention_layernorm.weight"],
            torch.cat([weights[mlp + "gate_proj.weight"], weights[mlp + "up_proj.weight"]]),
        )
        bias = None
        if mlp + "gate_proj.bias" in weights:
            bias = torch.cat([weights[mlp + "gate_proj.bias"], weights[mlp + "up_proj.bias"]])
        qkv_bias = None
        if at + "self_attn.q_proj.bias" in weights:
            qkv_bias = self._grouped(weights, at, "{}_proj.bias").flatten()
        return _Layer(
            norm_1=norm_1,
            qkv=make_linear(qkv, qkv_bias),
            qk_norm=self._qk_norm(weights, at),
            out=plain("self_attn.o_proj"),
            norm_2=norm_2,
            gate_up=make_linear(gate_up, bias),
            down=plain("mlp.down_proj"),
        )

    def _qkv(self, weights: "Weights", at: str) -> "Tensor":
        return self._grouped(weights, at, "{}_proj.weight").flatten(0, 2)

    def _grouped(self, weights: "Weights", at: str, name: str) -> "Tensor":
        """[Hk, G + 2, D, …]: for each key head its queries, itself and its value."""
        parts = [weights[at + "self_attn." + name.format(part)] for part in "qkv"]
        q, k, v = (p.view(self.kv_heads, -1, self.head_dim, *p.shape[1:]) for p in parts)
        return torch.cat([q[:, :, self.order], k[:, :, self.order], v], dim=1)

    def _qk_norm(self, weights: "Weights", at: str) -> "Tensor | None":
        """[G + 1, D] weights of the head-wise norms of queries and keys (Qwen3)."""
        if at + "self_attn.q_norm.weight" not in weights:
            return None
        q = weights[at + "self_attn.q_norm.weight"][self.order]
        k = weights[at + "self_attn.k_norm.weight"][self.order]
        return torch.cat([q.expand(self.group, -1), k.unsqueeze(0)])

    # ------------------------------------------------------------------ forward

    def hidden(self, tokens: "Tensor", positions: "Tensor", attend: "Attend") -> "Tensor":
        """[t, H] before the final norm; ``tokens`` and ``positions`` are [t]."""
        assert self.loaded is not None  # noqa: S101 - own invariant
        x = F.embedding(tokens, self.loaded.embedding)
        turns = self.turns.index_select(0, positions).view(-1, 1, 1, self.head_dim // 2)
        shape, inner = (-1, self.kv_heads, self.group + 2, self.head_dim), self.inner
        for i, layer in enumerate(self.loaded.blocks):
            qkv = layer.qkv(self._normed(x, layer.norm_1)).view(shape)
            self._rotate(qkv[:, :, :-1], turns, layer.qk_norm)
            x = layer.out(attend(i, qkv)).add_(x)
            gate_up = layer.gate_up(self._normed(x, layer.norm_2))
            gated = F.silu(gate_up[:, :inner]).mul_(gate_up[:, inner:])
            x = layer.down(gated).add_(x)
        return x

    def logits(self, hidden: "Tensor") -> "Tensor":
        """[t, V] float32."""
        assert self.loaded is not None  # noqa: S101 - own invariant
        return self.loaded.head(self._normed(hidden, self.loaded.norm)).float()

    def _normed(self, x: "Tensor", weight: "Tensor | None") -> "Tensor":
        """Root-mean-square norm; without a weight by fewer kernels than torch's own."""
        if weight is not None:
            return F.rms_norm(x, (self.size,), weight, self.eps)
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        inverse = torch.addcmul(self.eps_tensor, length, length, value=1 / self.size).rsqrt_()
        return inverse * x

    def _rotate(self, qk: "Tensor", turns: "Tensor", norm: "Tensor | None") -> None:
        """Normalise (Qwen3) and turn queries and keys in place; in float32 for other dtypes."""
        if norm is not None:
            qk.copy_(F.rms_norm(qk, (self.head_dim,), eps=self.eps) * norm)
        if qk.dtype == torch.float32:
            torch.view_as_complex(_pairs(qk)).mul_(turns)
        else:
            turned = torch.view_as_complex(_pairs(qk.float())) * turns
            qk.copy_(torch.view_as_real(turned).flatten(-2))


def _pairs(x: "Tensor") -> "Tensor":
    """[…, D/2, 2]."""
    return x.view(*x.shape[:-1], -1, 2)


def _folded(norm: "Tensor", projection: "Tensor") -> "tuple[Tensor | None, Tensor]":
    """(weight that the norm still needs, projection [out, in] that follows it)."""
    if projection.dtype == torch.float32:
        return None, projection * norm
    return norm, projection
