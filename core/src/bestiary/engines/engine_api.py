"""The contracts of training and rollout engines, and the data that crosses them.

An engine lives inside a worker process and sees only the rows of its rank. Dispatch, weights of
the loss and the micro-batch plan are made by the caller, from global counts; an engine adds up.

Light: torch is imported by implementations only.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    from torch import Tensor

    from bestiary.batch import Ragged, RowBlock
    from bestiary.protocols import ComponentRef, Sampling, Stat

Place = Literal["device", "host", "freed"]


@dataclass(frozen=True, slots=True)
class Residency:
    """Where the parts of one model are while a phase runs."""

    weights: Place = "device"
    gradients: Place = "device"
    optimizer: Place = "device"
    kv: Place = "device"


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelSpec:
    """A model to build in a worker: all plain values.

    Args:
        path: folder in ``save_pretrained`` layout.
        head: ``lm``, ``value`` for one number a token, or both on one trunk.
        dtype: dtype of computation; master weights and optimizer stay float32.
        trainable: False drops gradients and the optimizer.
        lr: learning rate of this model; None is that of the engine's options.
    """

    path: str
    head: Literal["lm", "value", "lm+value"] = "lm"
    dtype: Literal["fp32", "bf16"] = "fp32"
    trainable: bool = True
    lr: float | None = None


@dataclass(frozen=True, slots=True)
class Ranks:
    """The place of this process in its worker group; ``device`` is ``cpu`` or ``cuda:i``."""

    rank: int = 0
    world: int = 1
    device: str = "cpu"


@dataclass(frozen=True, slots=True)
class TermJob:
    """A term as a rank sees it.

    Args:
        loss: the loss, resolved by the worker's own plugin manager.
        row_weights: [n] float64, the weight of each token of a row: normalisation, coefficient,
            sample weight and validity are already inside, from global counts.
    """

    loss: "ComponentRef"
    row_weights: "np.ndarray"


@dataclass(frozen=True, slots=True)
class UpdatePart:
    """Rows with the terms that use them; an update sums over its parts.

    Args:
        rows: the rows of this rank.
        micro: row indices of each micro-batch. Every rank has the same number; an index may
            repeat as a dummy, and ``dummy`` marks those.
        terms: the summands.
        temperature: of the log-probabilities.
    """

    rows: "RowBlock"
    micro: Sequence[Sequence[int]]
    terms: Sequence[TermJob]
    temperature: float = 1.0
    dummy: frozenset[int] = field(default_factory=frozenset)
    """Micro-batch numbers whose rows all have weight zero: run for the collectives only."""


class TrainEngine(Protocol):
    """Owns a module, its optimizer and its layout on one rank.

    Called by all ranks of a group in the same order.
    """

    version: int
    """Optimizer steps since the base weights (skipped steps do not count)."""

    def forward(
        self,
        rows: "RowBlock",
        micro: Sequence[Sequence[int]],
        outputs: Collection[str],
        temperature: float = 1.0,
        adapter: Literal["on", "off"] = "on",
    ) -> "Mapping[str, Ragged]":
        """Fields of ``ModelOutput`` without gradient, a ragged column each, in row order.

        ``values_after`` is the value after the last response token: one entry for each row.
        ``probs_squared`` is Σ_a π(a)² of each token's distribution. ``adapter="off"`` runs the
        base of a LoRA model.
        """
        ...

    def update(self, parts: Sequence[UpdatePart]) -> "Mapping[str, Stat]":
        """One optimizer step on the summed gradients of all parts and ranks."""
        ...

    def export(self, dtype: str = "") -> "Iterator[Mapping[str, Tensor]]":
        """Whole parameters under their checkpoint names, bucket by bucket, the same on each rank.

        Tied parameters appear once. Tensors may share memory with the engine: read, do not keep.
        """
        ...

    def residency(self, want: Residency) -> Mapping[str, Any]:
        """Move or free gradients and optimizer state; returns the bytes moved and freed."""
        ...

    def save(self, folder: "Path") -> None:
        """This rank's share of weights, optimizer and counters, as safetensors and JSON."""
        ...

    def load(self, folder: "Path") -> None:
        """Restore a saved state; world size may differ."""
        ...


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt with all its responses.

    Args:
        prompt_ids: [P] int64.
        samplings: several kinds of response in one call.
        keys: for each sampling, ``n`` keys of the samples' random streams (uint64).
    """

    prompt_ids: "np.ndarray"
    samplings: "Sequence[Sampling]"
    keys: Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True)
class Completion:
    """One response.

    Args:
        ids: [L] int64, the end token included when it was drawn.
        logprobs: [L] float32 of the distribution that was sampled from.
        logprobs_full: [L] float32 at the same temperature without truncation of the vocabulary.
        truncated: cut by the token limit: no end token and no stop text was drawn.
        version: policy version that drew every token of it.
    """

    ids: "np.ndarray"
    logprobs: "np.ndarray"
    logprobs_full: "np.ndarray"
    truncated: bool
    version: int


class RolloutEngine(Protocol):
    """Draws responses. Weights arrive by ``prepare → write* → commit``.

    A failed or interrupted commit makes the engine unusable until the next complete one; caches
    that were made by older weights are dropped by it.
    """

    version: int

    def prepare(self, version: int) -> None:
        """Announce new weights."""
        ...

    def write(self, bucket: "Mapping[str, Tensor]") -> None:
        """Take a bucket; the tensors are not kept."""
        ...

    def commit(self, checksum: str) -> None:
        """Finish; ``checksum`` is what the trainer computed over everything that it wrote."""
        ...

    def generate(self, requests: "Sequence[Request]") -> "list[list[Completion]]":
        """Completions in order: for each request its samplings' responses, one after another."""
        ...

    def residency(self, want: Residency) -> Mapping[str, Any]:
        """Move or free parts; returns the bytes moved and freed."""
        ...
