"""LoRA adapters in peft's format, as models: merged into their base in float32 and cached.

Whatever comes after :func:`bestiary.models.resolve.resolve_model` then sees a plain model.
"""

import json
import shutil
import warnings
from collections import Counter
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bestiary.errors import ModelError
from bestiary.models.cache import cached, content_hash
from bestiary.models.files import (
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    TOKENIZER_FILES,
    VALUE_HEAD_FILE,
    VOCABULARY_FILES,
)
from bestiary.models.quiet import quiet_transformers

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedModel

_KINDS = (None, "CAUSAL_LM")


def is_adapter(folder: Path) -> bool:
    """Whether a folder holds an adapter of peft (transformers would load its base instead)."""
    return (folder / ADAPTER_CONFIG).is_file()


def base_of(folder: Path) -> tuple[str, str]:
    """(path, revision) of the model that an adapter was trained on.

    Raises:
        ModelError: if it is no LoRA adapter of a causal language model with safetensors weights.
    """
    config = _read(folder / ADAPTER_CONFIG)
    kind, task = config.get("peft_type"), config.get("task_type")
    if kind != "LORA":
        raise ModelError(
            f"the adapter {str(folder)!r} has peft_type {kind!r}", hint="LORA is wanted"
        )
    if task not in _KINDS:
        raise ModelError(
            f"the adapter {str(folder)!r} is for the task {task}; a causal language model is "
            "wanted",
            hint="a sequence classifier serves as a scorer: reward=classifier reward.path=…",
        )
    if not (folder / ADAPTER_WEIGHTS).is_file():
        pickled = any(folder.glob("*.bin"))
        raise ModelError(
            f"the adapter {str(folder)!r} has no {ADAPTER_WEIGHTS}",
            hint="its .bin files are pickles, which are never read; save it as safetensors"
            if pickled
            else "save it with peft's model.save_pretrained(folder)",
        )
    base = config.get("base_model_name_or_path")
    if not base:
        raise ModelError(
            f"the adapter {str(folder)!r} names no base model",
            hint=f"set base_model_name_or_path in its {ADAPTER_CONFIG}",
        )
    return str(base), str(config.get("revision") or "")


def merge_adapter(folder: Path, base: Path, *, cache: Path | None = None) -> Path:
    """The base model with W + (α/r)·B·A in place of W, computed in float32, merged once.

    Args:
        folder: the adapter, as peft saves it; its tokenizer and value head come along.
        base: folder of the base model.
        cache: root of the cache; the user's own by default.

    Raises:
        ModelError: if the adapter does not fit the base.
    """
    names = (ADAPTER_WEIGHTS, ADAPTER_CONFIG, VALUE_HEAD_FILE, *TOKENIZER_FILES)
    own = [name for name in names if (folder / name).is_file()]
    key = {
        "format": 1,
        "adapter": {name: content_hash(folder / name) for name in own},
        "base": str(base.resolve()),
        "files": sorted(_stamp(file) for file in base.iterdir() if file.is_file()),
        "peft": version("peft"),
        "transformers": version("transformers"),
    }

    def build(target: Path) -> None:
        with warnings.catch_warnings():
            # Of tied embeddings and Conv1D, both of which are taken care of.
            warnings.filterwarnings("ignore", ".*(tie_word_embeddings|fan_in_fan_out)", UserWarning)
            _merge(folder, base, target)
        brings = any((folder / name).is_file() for name in VOCABULARY_FILES)
        source = folder if brings else base
        for file in (*(source / name for name in TOKENIZER_FILES), folder / VALUE_HEAD_FILE):
            if file.is_file():
                shutil.copyfile(file, target / file.name)

    return cached("merged", key, build, root=cache)


def _stamp(file: Path) -> list[Any]:
    """What tells that a file of the base has changed, without reading all of a large model."""
    stat = file.stat()
    return [file.name, stat.st_size, stat.st_mtime_ns]


def _merge(folder: Path, base: Path, target: Path) -> None:
    from safetensors import SafetensorError

    from bestiary.models.loading import load_causal_lm

    lm = load_causal_lm(base)
    shared = shared_weights(lm)
    try:
        tuned = _tuned(folder, lm)
        tied = _tied_layers(tuned, shared)
        if tied:
            raise ModelError(
                f"the adapter {str(folder)!r} adapts {', '.join(tied)}, whose weight is another "
                "layer's too, so that merging would change both",
                hint="untie the embeddings of the base, or train without these target_modules",
            )
        whole = tuned.merge_and_unload(safe_merge=True)
    except (OSError, ValueError, KeyError, RuntimeError, TypeError, SafetensorError) as error:
        raise ModelError(
            f"the adapter {str(folder)!r} does not fit its base {str(base)!r}: "
            f"{type(error).__name__}: {error}",
            hint=f"base_model_name_or_path in its {ADAPTER_CONFIG} names another model, or the "
            "base has changed",
        ) from error
    output, inputs = whole.get_output_embeddings(), whole.get_input_embeddings()
    # An output layer that the adapter brings whole is no longer the embedding.
    whole.config.tie_word_embeddings = output is not None and output.weight is inputs.weight
    with quiet_transformers():
        whole.save_pretrained(str(target))


def _tuned(folder: Path, lm: "PreTrainedModel") -> Any:  # noqa: ANN401 - a PeftModel, whose methods are untyped
    """The model with the adapter on it, in float32."""
    from peft import LoraConfig, PeftModel, set_peft_model_state_dict
    from safetensors.torch import load_file

    config = LoraConfig.from_pretrained(str(folder))
    config.inference_mode = True
    tuned = PeftModel(lm, config)
    result: Any = set_peft_model_state_dict(tuned, load_file(str(folder / ADAPTER_WEIGHTS)))
    missing = [name for name in result.missing_keys if "lora_" in name]
    if missing or result.unexpected_keys:
        raise ValueError(f"missing {missing[:2]}, unexpected {result.unexpected_keys[:2]}")
    return tuned


def shared_weights(module: "nn.Module") -> frozenset[int]:
    """Ids of the parameters that several layers have in common, as tied embeddings do."""
    owners = Counter(
        id(p) for part in module.modules() for p in part._parameters.values() if p is not None
    )
    return frozenset(p for p, count in owners.items() if count > 1)


def _tied_layers(tuned: "nn.Module", shared: frozenset[int]) -> list[str]:
    """Adapted layers whose weight is another layer's too: merging would change both."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    return [
        name.removeprefix("base_model.model.")
        for name, part in tuned.named_modules()
        if isinstance(part, BaseTunerLayer) and id(part.get_base_layer().weight) in shared
    ]


def _read(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(f"{file} is no JSON: {error}") from error
    if not isinstance(content, dict):
        raise ModelError(f"{file} holds no object")
    return content
