"""Names of the files of a model folder."""

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
