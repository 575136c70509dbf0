"""Names of the files of a model folder, and what its configuration says without loading it."""

import json
from pathlib import Path

VOCABULARY_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")
"""A tokenizer has at least one of them."""

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "tokenizer.model",
    "chat_template.jinja",
    "generation_config.json",
)
"""Everything that decides how text becomes ids, and which ids end a response."""

VALUE_HEAD_FILE = "value_head.safetensors"
"""Beside the model's own weights, so that the folder still loads as a plain language model."""

ADAPTER_CONFIG = "adapter_config.json"
"""Marks the folder of an adapter of peft."""

ADAPTER_WEIGHTS = "adapter_model.safetensors"
"""The adapter's weights; peft's other form is a pickle."""

CONFIG_FILE = "config.json"
"""The architecture and its sizes."""


def hidden_size(folder: Path) -> int:
    """Width of the decoder from its configuration; 0 where it says none."""
    try:
        config = json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return 0
    found = config.get("hidden_size", config.get("n_embd", 0)) if isinstance(config, dict) else 0
    return found if isinstance(found, int) else 0
