"""Load causal language models of transformers: safetensors only, no code from the checkpoint."""

from pathlib import Path
from typing import TYPE_CHECKING, cast

from bestiary.errors import ModelError
from bestiary.models.adapter import is_adapter
from bestiary.models.quiet import quiet_transformers

if TYPE_CHECKING:
    import torch
    from torch import nn
    from transformers import PreTrainedModel


def load_causal_lm(
    path: str | Path, *, dtype: "torch.dtype | None" = None, attention: str = "sdpa"
) -> "PreTrainedModel":
    """Load a causal language model in evaluation mode.

    Args:
        path: folder in ``save_pretrained`` layout, or the name of a model that is already in the
            local cache of Hugging Face.
        dtype: of the weights; None is float32.
        attention: name of the attention implementation.

    Raises:
        ModelError: if there is no such model, it has no causal head, or it needs code of its own.
    """
    import torch
    from transformers import AutoModelForCausalLM

    folder = Path(path)
    if folder.is_dir() and not is_adapter(folder) and not (folder / "config.json").is_file():
        raise ModelError(
            f"model path {str(path)!r} has no config.json",
            hint="give a folder as save_pretrained writes it, or a model of bestiary's cache",
        )
    if is_adapter(folder):
        raise ModelError(
            f"model path {str(path)!r} is a LoRA adapter, not a model",
            hint="resolve_model(path) merges it into its base",
        )
    try:
        with quiet_transformers():
            model = AutoModelForCausalLM.from_pretrained(
                str(path),
                dtype=dtype or torch.float32,
                attn_implementation=attention,
                trust_remote_code=False,
                use_safetensors=True,
            )
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise ModelError(
            f"model {str(path)!r} cannot be loaded: {type(error).__name__}: {error}",
            hint="it must be a causal language model with safetensors weights that transformers "
            "knows without code from the checkpoint",
        ) from error
    model.train(False)
    return cast("PreTrainedModel", model)


def decoder_layers(model: "PreTrainedModel") -> "list[nn.Module]":
    """The decoder layers: the units of sharding and of activation checkpointing."""
    from torch import nn

    body = model.base_model
    lists = [m for m in body.children() if isinstance(m, nn.ModuleList) and len(m)]
    if not lists:
        raise ModelError(
            f"{type(model).__name__} keeps no list of decoder layers in its body",
            hint="shard=none and activation_checkpointing=false need none",
        )
    longest = max(lists, key=len)
    return list(longest)
