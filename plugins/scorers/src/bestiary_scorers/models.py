"""Load a scoring model: a sequence classifier, or a model with a value head; adapters merged."""

import json
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bestiary_scorers.options import ClassifierOptions

VALUE_HEAD = "value_head.safetensors"
"""What a model that bestiary trained with a value head has beside its weights."""

_ADAPTER, _CONFIG = "adapter_model.safetensors", "adapter_config.json"
_LAST_LAYERS = ("score.weight", "classifier.weight", "classifier.out_proj.weight")
"""Names of the layer with one row for each label."""
_LOAD = {"trust_remote_code": False, "use_safetensors": True}


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model that is ready to score.

    Args:
        model: without gradient, on its device. With a ``head`` it gives hidden states, else
            logits.
        tokenizer: its own; cuts at the left.
        head: weight [H] and bias [1] of a value head, float32.
        limit: tokens of a text at most.
    """

    model: Any
    tokenizer: Any
    head: tuple[Any, Any] | None
    limit: int


def load(o: ClassifierOptions) -> Loaded:
    """Load what is at ``o.path``.

    Raises:
        ValueError: for weights that are not there, a label that the model does not have, or a
            missing chat template.
        OSError: if there is no model.
    """
    with _quietly():
        return _load(o)


def _load(o: ClassifierOptions) -> Loaded:
    import torch

    folder = Path(o.path)
    base = _base(folder) or o.path
    adapter = folder if base != o.path else None
    own = folder / VALUE_HEAD
    tokenizer = _tokenizer(o, base)
    dtype = torch.bfloat16 if o.dtype == "bf16" else torch.float32
    head: tuple[Any, Any] | None = None
    if own.is_file():
        model = _language_model(base, dtype)
        head = _head(own, o.device)
    else:
        model = _classifier(base, dtype, adapter)
    if adapter is not None:
        model = _merged(model, adapter)
    _check_output(o, None if head is not None else int(model.config.num_labels))
    if head is not None:
        model = model.base_model  # without the language-model head
    model = model.to(o.device).eval().requires_grad_(False)
    return Loaded(model, tokenizer, head, _limit(o, tokenizer, model.config))


def _check_output(o: ClassifierOptions, labels: int | None) -> None:
    if o.output == "softmax" and (labels is None or labels == 1):
        raise ValueError(
            "output=softmax over one number is always 1; output=sigmoid or logit is wanted"
        )
    if labels is not None and not -labels <= o.label < labels:
        raise ValueError(f"label={o.label}: the model has {labels} labels, 0 to {labels - 1}")


def _limit(o: ClassifierOptions, tokenizer: Any, config: Any) -> int:  # noqa: ANN401 - transformers
    """``max_tokens``, or what the model and its tokenizer can take where that is less."""
    text = config.get_text_config()
    most = getattr(text, "max_position_embeddings", None) or o.max_tokens
    return min(o.max_tokens, int(most), int(tokenizer.model_max_length))


# --------------------------------------------------------------------------- parts


@contextmanager
def _quietly() -> Iterator[None]:
    """Without bars and reports of transformers: what is missing is an error of our own."""
    from transformers.utils import logging

    told: Any = logging
    level, bars = told.get_verbosity(), told.is_progress_bar_enabled()
    told.set_verbosity_error()
    told.disable_progress_bar()
    try:
        yield
    finally:
        told.set_verbosity(level)
        if bars:
            told.enable_progress_bar()


def _tokenizer(o: ClassifierOptions, base: str) -> Any:  # noqa: ANN401 - of transformers
    from transformers import AutoTokenizer

    folder = Path(o.path)
    there = not folder.is_dir() or (folder / "tokenizer_config.json").is_file()
    tokenizer = AutoTokenizer.from_pretrained(o.path if there else base, trust_remote_code=False)
    tokenizer.truncation_side = "left"
    if o.chat and not tokenizer.chat_template:
        raise ValueError("chat=true, and its tokenizer has no chat template; use reward.template")
    return tokenizer


def _language_model(base: str, dtype: Any) -> Any:  # noqa: ANN401 - of transformers
    from transformers import AutoModelForCausalLM

    found: Any = AutoModelForCausalLM.from_pretrained(
        base, **_LOAD, dtype=dtype, output_loading_info=True
    )
    model, info = found
    # A model that was trained with a value head has no output layer, and needs none here.
    inner = f"{model.base_model_prefix}."
    _refuse_missing([key for key in info["missing_keys"] if key.startswith(inner)], base)
    return model


def _head(file: Path, device: str) -> tuple[Any, Any]:
    from safetensors.torch import load_file

    tensors = load_file(str(file), device=device)
    return tensors["linear.weight"][0].float(), tensors["linear.bias"].float()


def _classifier(base: str, dtype: Any, adapter: Path | None) -> Any:  # noqa: ANN401 - as above
    """A sequence classifier whose head is in its weights, or in the adapter's."""
    from transformers import AutoModelForSequenceClassification

    brought = _brought(adapter) if adapter else {}
    last = [brought[name] for name in _LAST_LAYERS if name in brought]
    labels = {"num_labels": last[0]} if last else {}
    found: Any = AutoModelForSequenceClassification.from_pretrained(
        base, **_LOAD, dtype=dtype, output_loading_info=True, **labels
    )
    model, info = found
    _refuse_missing([key for key in info["missing_keys"] if key not in brought], base)
    return model


def _refuse_missing(missing: Sequence[str], base: str) -> None:
    """A part that was never trained would score at random, with a warning at most."""
    if missing:
        raise ValueError(f"the weights of {base} lack {', '.join(sorted(missing)[:4])}")


def _base(folder: Path) -> str:
    """The base model of an adapter of peft, empty for any other folder."""
    config = folder / _CONFIG
    if not config.is_file():
        return ""
    if not (folder / _ADAPTER).is_file():
        raise ValueError(f"the adapter has no {_ADAPTER}; other formats are not read")
    return str(json.loads(config.read_text(encoding="utf-8"))["base_model_name_or_path"])


def _brought(adapter: Path) -> dict[str, int]:
    """Whole parameters that an adapter brings, by the model's names → their first dimension."""
    from safetensors import safe_open

    with safe_open(str(adapter / _ADAPTER), framework="pt") as file:
        return {
            key.removeprefix("base_model.model."): int(file.get_slice(key).get_shape()[0])
            for key in file.keys()  # noqa: SIM118 - no mapping
            if "lora_" not in key
        }


def _merged(model: Any, adapter: Path) -> Any:  # noqa: ANN401 - models of transformers and peft
    try:
        from peft import PeftModel
    except ImportError as error:
        raise ValueError(
            f"it is an adapter, which needs the package peft ({error}); "
            "pip install 'bestiary-scorers[lora]'"
        ) from error
    with warnings.catch_warnings():
        # peft only warns where no weight of the adapter fits the model.
        warnings.filterwarnings("error", message=".*missing adapter keys.*")
        try:
            return PeftModel.from_pretrained(model, str(adapter)).merge_and_unload()
        except Warning as error:
            raise ValueError(f"the adapter does not fit its base: {error}") from error
