"""Write a model as users expect it: a folder in ``save_pretrained`` layout, in safetensors."""

import json
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bestiary.errors import ModelError
from bestiary.models.files import ADAPTER_WEIGHTS, TOKENIZER_FILES, VALUE_HEAD_FILE
from bestiary.models.heads import VALUE_HEAD_PREFIX as _HEAD

if TYPE_CHECKING:
    from torch import Tensor


def save_model(
    folder: str | Path,
    source: str | Path,
    buckets: Iterable[Mapping[str, "Tensor"]],
    *,
    dtype: str = "",
    max_shard_bytes: int = 2 << 30,
) -> list[Path]:
    """Write weights with the configuration and tokenizer of the model that they come from.

    Args:
        folder: made if missing; files of the same names are replaced.
        source: folder of the model that was trained.
        buckets: whole parameters by their names, as ``TrainEngine.export`` yields them.
        dtype: ``fp32``, ``bf16`` or empty for the tensors' own.
        max_shard_bytes: a weight file is closed when it reaches this size.

    Returns:
        The weight files.

    Raises:
        ModelError: if ``source`` has no configuration, or nothing was exported.
    """
    from safetensors.torch import save_file

    folder, source = Path(folder), Path(source)
    if not (source / "config.json").is_file():
        raise ModelError(f"{source} has no config.json, so its model cannot be saved again")
    folder.mkdir(parents=True, exist_ok=True)
    for stale in folder.glob("model*.safetensors*"):
        stale.unlink()
    files: list[Path] = []
    where: dict[str, int] = {}
    head: dict[str, Tensor] = {}
    total = 0
    for shard in _shards(buckets, max_shard_bytes, dtype, head):
        path = folder / f"part-{len(files)}.safetensors"
        save_file(shard, str(path), metadata={"format": "pt"})
        where.update(dict.fromkeys(shard, len(files)))
        total += sum(t.numel() * t.element_size() for t in shard.values())
        files.append(path)
    if not files:
        raise ModelError("nothing was exported, so there is no model to save")
    files = _rename(folder, files, where, total)
    if head:
        save_file(head, str(folder / VALUE_HEAD_FILE), metadata={"format": "pt"})
    _copy_rest(source, folder, dtype)
    return files


def save_adapter(folder: str | Path, tensors: "Mapping[str, Tensor]", config: Any) -> None:  # noqa: ANN401 - peft's
    """Write a LoRA adapter as peft does: ``adapter_model.safetensors`` and its configuration.

    Args:
        folder: made if missing.
        tensors: by peft's names; those of a value head get a file of their own.
        config: peft's ``LoraConfig``.
    """
    from safetensors.torch import save_file

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    head = {n.removeprefix(_HEAD): t for n, t in tensors.items() if n.startswith(_HEAD)}
    rest = {n: t for n, t in tensors.items() if not n.startswith(_HEAD)}
    save_file(rest, str(folder / ADAPTER_WEIGHTS), metadata={"format": "pt"})
    if head:
        save_file(head, str(folder / VALUE_HEAD_FILE), metadata={"format": "pt"})
    config.save_pretrained(str(folder))


def _shards(
    buckets: Iterable[Mapping[str, "Tensor"]], limit: int, dtype: str, head: "dict[str, Tensor]"
) -> "Iterable[dict[str, Tensor]]":
    """Tensors in files of about ``limit`` bytes; those of a value head are put aside."""
    import torch

    to = {"": None, "fp32": torch.float32, "bf16": torch.bfloat16}[dtype]
    shard: dict[str, Tensor] = {}
    size = 0
    for bucket in buckets:
        for name, tensor in bucket.items():
            # A copy: the exporter may reuse its memory for the next bucket.
            kept = tensor.detach().to("cpu", to or tensor.dtype, copy=True).contiguous()
            if name.startswith(_HEAD):
                head[name.removeprefix(_HEAD)] = kept
                continue
            if shard and size + kept.numel() * kept.element_size() > limit:
                yield shard
                shard, size = {}, 0
            shard[name] = kept
            size += kept.numel() * kept.element_size()
    if shard:
        yield shard


def _rename(folder: Path, files: list[Path], where: dict[str, int], total: int) -> list[Path]:
    """Give the files the names that transformers looks for, with an index for several."""
    if len(files) == 1:
        return [files[0].rename(folder / "model.safetensors")]
    count = len(files)
    named = [
        path.rename(folder / f"model-{i + 1:05d}-of-{count:05d}.safetensors")
        for i, path in enumerate(files)
    ]
    index = {
        "metadata": {"total_size": total},
        "weight_map": {name: named[number].name for name, number in sorted(where.items())},
    }
    text = json.dumps(index, indent=2)
    (folder / "model.safetensors.index.json").write_text(text, encoding="utf-8")
    return named


def _copy_rest(source: Path, folder: Path, dtype: str) -> None:
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    if dtype:
        config["dtype"] = {"fp32": "float32", "bf16": "bfloat16"}[dtype]
        config.pop("torch_dtype", None)
    # A GGUF source was dequantised when it was loaded.
    config.pop("quantization_config", None)
    (folder / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    for name in TOKENIZER_FILES:
        if (source / name).is_file() and source.resolve() != folder.resolve():
            shutil.copy2(source / name, folder / name)
