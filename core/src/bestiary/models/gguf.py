"""One-time conversion of a GGUF file to a folder in ``save_pretrained`` layout."""

from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from bestiary.errors import ModelError
from bestiary.models.cache import cached, content_hash
from bestiary.models.quiet import quiet_transformers


def convert_gguf(file: Path, *, cache: Path | None = None) -> Path:
    """The model of a GGUF file with float32 weights as safetensors, converted once and cached.

    Quantised weights are dequantised; the tokenizer and its chat template come along.

    Args:
        file: the ``.gguf`` file.
        cache: root of the cache; the user's own by default.

    Raises:
        ModelError: if the file cannot be read as a causal language model.
    """
    missing = [name for name in ("gguf", "accelerate") if find_spec(name) is None]
    if missing:
        raise ModelError(
            f"{file.name}: reading GGUF needs {' and '.join(missing)}",
            hint=f"pip install {' '.join(missing)}",
        )
    key = {
        "format": 1,
        "file": file.name,
        "content": content_hash(file),
        "transformers": version("transformers"),
        "gguf": version("gguf"),
    }
    return cached("gguf", key, lambda folder: _convert(file, folder), root=cache)


def _convert(file: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    home, name = str(file.parent), file.name
    try:
        with quiet_transformers():
            tokenizer = AutoTokenizer.from_pretrained(home, gguf_file=name)
            # Without dequantize the module keeps packed weights and refuses to be saved.
            model = AutoModelForCausalLM.from_pretrained(
                home,
                gguf_file=name,
                dtype=torch.float32,
                quantization_config=GgufConfig(gguf_file=name, dequantize=True),
            )
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise ModelError(
            f"{file.name} cannot be converted: {type(error).__name__}: {error}",
            hint="transformers reads the architectures in its GGUF list only; "
            "use a safetensors folder of the same model instead",
        ) from error
    # The saved folder holds plain weights; a quantisation entry would be applied at the next load.
    if getattr(model.config, "quantization_config", None) is not None:
        del model.config.quantization_config
    with quiet_transformers():
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
