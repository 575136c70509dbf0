"""Parameters of decoder-only models on paper: named ones, or a folder's ``config.json``."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from bestiary.distributed.resharding.layout import Parameter
from bestiary.errors import ModelError


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a decoder.

    Args:
        layers: decoder layers.
        hidden: width.
        heads: attention heads.
        kv_heads: key-value heads.
        intermediate: width of the MLP.
        vocab: tokens.
        head_dim: of one head; 0 is hidden / heads.
        tied: output layer = embedding.
        bias: query, key and value have biases (Qwen2).
        family: ``llama`` (three matrices in the MLP) or ``gpt2`` (two, and learned positions).
        positions: of ``gpt2``.
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    intermediate: int
    vocab: int
    head_dim: int = 0
    tied: bool = False
    bias: bool = False
    family: str = "llama"
    positions: int = 0


MODELS: Final[Mapping[str, Shape]] = {
    # config.json of meta-llama/Llama-2-*-hf
    "llama-2-7b": Shape(32, 4096, 32, 32, 11008, 32000),
    "llama-2-13b": Shape(40, 5120, 40, 40, 13824, 32000),
    "llama-2-70b": Shape(80, 8192, 64, 8, 28672, 32000),
    # codellama/CodeLlama-34b-hf
    "codellama-34b": Shape(48, 8192, 64, 8, 22016, 32000),
    # meta-llama/Meta-Llama-3-*
    "llama-3-8b": Shape(32, 4096, 32, 8, 14336, 128256),
    "llama-3-70b": Shape(80, 8192, 64, 8, 28672, 128256),
    # Qwen/Qwen2.5-*
    "qwen2.5-0.5b": Shape(24, 896, 14, 2, 4864, 151936, tied=True, bias=True),
    "qwen2.5-7b": Shape(28, 3584, 28, 4, 18944, 152064, bias=True),
    "qwen2.5-32b": Shape(64, 5120, 40, 8, 27648, 152064, bias=True),
    # Qwen/Qwen3-8B
    "qwen3-8b": Shape(36, 4096, 32, 8, 12288, 151936, head_dim=128),
    # openai-community/gpt2*
    "gpt2": Shape(
        12, 768, 12, 12, 3072, 50257, tied=True, bias=True, family="gpt2", positions=1024
    ),
    "gpt2-xl": Shape(
        48, 1600, 25, 25, 6400, 50257, tied=True, bias=True, family="gpt2", positions=1024
    ),
}


def find_shape(model: str) -> Shape:
    """A named shape, or that of a folder with ``config.json``.

    Raises:
        ModelError: naming the nearest known model.
    """
    if model in MODELS:
        return MODELS[model]
    file = Path(model).expanduser() / "config.json"
    if file.is_file():
        return shape_of(json.loads(file.read_text(encoding="utf-8")), str(file))
    near = get_close_matches(model, MODELS, 1)
    raise ModelError(
        f"no model {model!r}" + (f"; did you mean {near[0]!r}?" if near else ""),
        hint=f"known shapes: {', '.join(MODELS)}; or a folder with config.json",
    )


def shape_of(config: Mapping[str, Any], where: str) -> Shape:
    """The shape that a configuration of transformers describes.

    Raises:
        ModelError: for one that lacks a size.
    """
    kind = str(config.get("model_type", ""))
    try:
        if kind == "gpt2":
            hidden = int(config["n_embd"])
            return Shape(
                int(config["n_layer"]), hidden, int(config["n_head"]), int(config["n_head"]),
                int(config.get("n_inner") or 4 * hidden), int(config["vocab_size"]),
                tied=bool(config.get("tie_word_embeddings", True)), bias=True, family="gpt2",
                positions=int(config["n_positions"]),
            )  # fmt: skip
        heads = int(config["num_attention_heads"])
        return Shape(
            int(config["num_hidden_layers"]), int(config["hidden_size"]), heads,
            int(config.get("num_key_value_heads") or heads), int(config["intermediate_size"]),
            int(config["vocab_size"]), head_dim=int(config.get("head_dim") or 0),
            tied=bool(config.get("tie_word_embeddings", False)),
            bias=kind == "qwen2" or bool(config.get("attention_bias", False)),
        )  # fmt: skip
    except (KeyError, TypeError, ValueError) as error:
        raise ModelError(f"{where} lacks a size of a decoder: {error}") from error


def parameters_of(shape: Shape) -> list[Parameter]:
    """Every parameter with the dim that tensor parallelism splits (Megatron's columns and rows)."""
    s, head = shape, shape.head_dim or shape.hidden // shape.heads
    last = s.layers
    made = [Parameter("embed", (s.vocab, s.hidden), 0, tied=s.tied)]
    if s.family == "gpt2":
        made.append(Parameter("positions", (s.positions, s.hidden)))
    for i in range(s.layers):
        made += _gpt2_layer(s, i) if s.family == "gpt2" else _llama_layer(s, head, i)
    made.append(Parameter("norm", (s.hidden,), None, last))
    if s.family == "gpt2":
        made.append(Parameter("norm.bias", (s.hidden,), None, last))
    if not s.tied:
        made.append(Parameter("head", (s.vocab, s.hidden), 0, last))
    return made


def _llama_layer(s: Shape, head: int, i: int) -> list[Parameter]:
    q, kv = s.heads * head, s.kv_heads * head
    made = [
        Parameter(f"{i}.q", (q, s.hidden), 0, i, blocks=s.heads),
        Parameter(f"{i}.k", (kv, s.hidden), 0, i, blocks=s.kv_heads, queries=s.heads),
        Parameter(f"{i}.v", (kv, s.hidden), 0, i, blocks=s.kv_heads, queries=s.heads),
        Parameter(f"{i}.o", (s.hidden, q), 1, i, blocks=s.heads),
        Parameter(f"{i}.gate", (s.intermediate, s.hidden), 0, i),
        Parameter(f"{i}.up", (s.intermediate, s.hidden), 0, i),
        Parameter(f"{i}.down", (s.hidden, s.intermediate), 1, i),
        Parameter(f"{i}.norm1", (s.hidden,), None, i),
        Parameter(f"{i}.norm2", (s.hidden,), None, i),
    ]
    if s.bias:
        made += [
            Parameter(f"{i}.q.bias", (q,), 0, i, blocks=s.heads),
            Parameter(f"{i}.k.bias", (kv,), 0, i, blocks=s.kv_heads, queries=s.heads),
            Parameter(f"{i}.v.bias", (kv,), 0, i, blocks=s.kv_heads, queries=s.heads),
        ]
    return made


def _gpt2_layer(s: Shape, i: int) -> list[Parameter]:
    made = []
    for part in ("q", "k", "v"):  # transformers keeps the three in one matrix
        made.append(Parameter(f"{i}.{part}", (s.hidden, s.hidden), 1, i, blocks=s.heads))
        made.append(Parameter(f"{i}.{part}.bias", (s.hidden,), 0, i, blocks=s.heads))
    made += [
        Parameter(f"{i}.o", (s.hidden, s.hidden), 0, i, blocks=s.heads),
        Parameter(f"{i}.o.bias", (s.hidden,), None, i),
        Parameter(f"{i}.fc", (s.hidden, s.intermediate), 1, i),
        Parameter(f"{i}.fc.bias", (s.intermediate,), 0, i),
        Parameter(f"{i}.proj", (s.intermediate, s.hidden), 0, i),
        Parameter(f"{i}.proj.bias", (s.hidden,), None, i),
    ]
    for norm in ("norm1", "norm2"):
        made.append(Parameter(f"{i}.{norm}", (s.hidden,), None, i))
        made.append(Parameter(f"{i}.{norm}.bias", (s.hidden,), None, i))
    return made
