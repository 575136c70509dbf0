"""Save and load weights and optimizer by parameter name, for any number of ranks.

A folder holds ``engine.json`` (counters), and for each rank ``rank_R.safetensors`` with row ranges
of parameters and moments and ``rank_R.json``, which says which rows of which parameter they are.
"""

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from bestiary.engines.fsdp.layout import Piece
from bestiary.engines.fsdp.optimizer import AdamW
from bestiary.errors import CheckpointError

FORMAT = 1
KINDS = ("weight", "exp_avg", "exp_avg_sq")


@dataclass(frozen=True, slots=True)
class Counters:
    """What the engine counts."""

    version: int
    skipped: int
    skipped_in_row: int


def save_state(
    folder: Path,
    pieces: Sequence[Piece],
    optimizer: AdamW | None,
    counters: Counters,
    rank: int,
    world: int,
    *,
    replicated: bool,
    adapter: Mapping[str, Any] | None = None,
) -> None:
    """Write this rank's part; every rank of the group calls it.

    Replicated parameters are divided among the ranks, whole. ``adapter`` says what a LoRA adapter
    belongs to.
    """
    folder.mkdir(parents=True, exist_ok=True)
    mine = [p for i, p in enumerate(pieces) if not replicated or i % world == rank]
    mine = [p for p in mine if p.weight.numel()]
    tensors: dict[str, Tensor] = {}
    rows: dict[str, Any] = {}
    for piece in mine:
        rows[piece.name] = {"start": piece.start, "whole": list(piece.whole)}
        for kind, tensor in _parts(piece, optimizer).items():
            tensors[f"{kind}/{piece.name}"] = tensor.detach().cpu().contiguous()
    path = folder / f"rank_{rank}.safetensors"
    save_file(tensors, str(path))
    _sync(path)
    _write_json(folder / f"rank_{rank}.json", {"format": FORMAT, "rows": rows})
    if rank == 0:
        state = {
            "format": FORMAT,
            "world": world,
            "optimizer": optimizer is not None,
            "version": counters.version,
            "skipped": counters.skipped,
            "skipped_in_row": counters.skipped_in_row,
            "adapter": adapter,
        }
        _write_json(folder / "engine.json", state)


def load_state(
    folder: Path,
    pieces: Sequence[Piece],
    optimizer: AdamW | None,
    adapter: Mapping[str, Any] | None = None,
) -> Counters:
    """Read what this rank holds, whatever the number of ranks that wrote it.

    Raises:
        CheckpointError: if files or rows are missing, parameters have other shapes, or a LoRA
            adapter belongs to another base or has another form.
    """
    state = _read_json(folder / "engine.json")
    if state.get("format") != FORMAT:
        raise CheckpointError(
            f"{folder}/engine.json has format {state.get('format')!r}; {FORMAT} is wanted",
            hint="it was written by another version of bestiary",
        )
    _check_adapter(folder, state.get("adapter"), adapter)
    if optimizer is not None and not state["optimizer"]:
        raise CheckpointError(f"{folder} holds weights only; a trained model needs its optimizer")
    with ExitStack() as stack:
        sources = []
        for rank in range(state["world"]):
            rows = _read_json(folder / f"rank_{rank}.json")["rows"]
            path = folder / f"rank_{rank}.safetensors"
            try:
                file = stack.enter_context(safe_open(str(path), framework="pt"))
            except (OSError, SafetensorError) as error:
                raise CheckpointError(f"{path} cannot be read: {error}") from error
            sources.append((rows, file))
        for piece in pieces:
            _fill(piece, _parts(piece, optimizer), sources, folder)
    if optimizer is not None:
        optimizer.set_step(state["version"])
    return Counters(state["version"], state["skipped"], state["skipped_in_row"])


def _check_adapter(
    folder: Path, stored: Mapping[str, Any] | None, wanted: Mapping[str, Any] | None
) -> None:
    if stored == wanted:
        return
    if stored is None or wanted is None:
        kinds = ("whole weights", "a LoRA adapter")
        has, trains = kinds if stored is None else kinds[::-1]
        raise CheckpointError(
            f"{folder} holds {has}; the model trains {trains}",
            hint="train_engine.lora must be as it was",
        )
    other = [name for name in wanted if stored.get(name) != wanted[name]]
    if "base" in other:
        raise CheckpointError(
            f"{folder} holds a LoRA adapter of other base weights than the model's",
            hint="model.path must name the weights that it was trained on",
        )
    told = ", ".join(f"{n}={stored.get(n)} there and {wanted[n]} here" for n in other)
    raise CheckpointError(
        f"{folder} holds another LoRA adapter: {told}", hint="train_engine.lora must be as it was"
    )


def _parts(piece: Piece, optimizer: AdamW | None) -> dict[str, Tensor]:
    """The weight and the moments of a piece, as views."""
    parts = {"weight": piece.weight}
    if optimizer is not None:
        size, shape = piece.weight.numel(), piece.weight.shape
        for kind, units in (("exp_avg", optimizer.first), ("exp_avg_sq", optimizer.second)):
            flat = units[piece.unit].reshape(-1)
            parts[kind] = flat[piece.offset : piece.offset + size].view(shape)
    return parts


def _fill(
    piece: Piece,
    parts: Mapping[str, Tensor],
    sources: Sequence[tuple[Mapping[str, Any], Any]],
    folder: Path,
) -> None:
    """Copy the rows of one piece from every file that has some of them."""
    rows = piece.weight.shape[0] if piece.weight.dim() else 1
    missing = rows
    for listed, file in sources:
        entry = listed.get(piece.name)
        if entry is None:
            continue
        if tuple(entry["whole"]) != piece.whole:
            raise CheckpointError(
                f"{folder}: {piece.name} has shape {tuple(entry['whole'])} there and "
                f"{piece.whole} in the model",
                hint="the checkpoint belongs to another model",
            )
        for kind, tensor in parts.items():
            stored = file.get_slice(f"{kind}/{piece.name}")
            if not piece.whole:
                tensor.copy_(file.get_tensor(f"{kind}/{piece.name}"))
                low, high = 0, 1
                continue
            first = entry["start"]
            low = max(piece.start, first)
            high = min(piece.start + rows, first + stored.get_shape()[0])
            if low < high:
                tensor[low - piece.start : high - piece.start] = stored[
                    low - first : high - first
                ].to(tensor.device)
        missing -= max(0, high - low)
    if missing:
        raise CheckpointError(
            f"{folder}: {missing} of {rows} rows of {piece.name} are missing",
            hint="the checkpoint is incomplete or belongs to another model",
        )


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")
    _sync(path)


def _sync(path: Path) -> None:
    """Bring a file to the disk, so that a marker written later never outlives it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    return value
