"""The process that holds models: training engines, rollout engines, forward passes."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from bestiary.batch import Ragged, RowBlock, Rows, Shipment
from bestiary.batch.expression import MASK, Expression, Reduction, evaluate, reduce_rows
from bestiary.distributed.seat import Seat
from bestiary.engines.engine_api import ModelSpec, Ranks, Request, RolloutEngine, TrainEngine
from bestiary.engines.hybrid.engine import HybridEngine, Policy
from bestiary.errors import AlgorithmError, EngineError, boundary
from bestiary.models.files import hidden_size
from bestiary.models.heads import VALUE_HEAD_PREFIX
from bestiary.plugins.manager import check_fingerprint, load_plugins
from bestiary.protocols import ComponentRef, Sampling, Stat
from bestiary.runtime.components import Components

Answer = tuple[RowBlock, dict[str, Any]]

_AFTER = "values_after"
REFERENCE = "reference"
"""Name of the model that a KL over the vocabulary is taken to."""


@dataclass(frozen=True, slots=True)
class ModelPlan:
    """A model to hold: plain values that travel to the worker."""

    spec: ModelSpec
    train: ComponentRef
    rollout: ComponentRef | None
    policy: Policy = "keep"
    """What becomes of training state while the model generates."""


@dataclass(frozen=True, slots=True)
class WorkerPlan:
    """Everything that a model worker is built from."""

    models: Mapping[str, ModelPlan]
    fingerprint: Mapping[str, Any]


class ModelWorker:
    """Holds the models of one pool on one rank; every method is called on all ranks alike.

    Args:
        plan: what to build.
        seat: the place of this process in its group.
    """

    needs_process_group = True

    def __init__(self, plan: WorkerPlan, seat: Seat) -> None:
        ranks = Ranks(seat.rank, seat.world, seat.device)
        self.ranks = ranks
        plugins = load_plugins()
        check_fingerprint(plan.fingerprint, plugins.fingerprint(), f"rank {ranks.rank}")
        self.components = Components(plugins)
        self.models: dict[str, ModelPlan] = {}
        self.train: dict[str, TrainEngine] = {}
        self.hybrid: dict[str, HybridEngine] = {}
        for name, model in plan.models.items():
            self.hold(name, model)

    def hold(self, name: str, model: ModelPlan) -> None:
        """Build one more model beside those that are here."""
        engine = self.components.build(model.train, model.spec, self.ranks)
        engine.resolve_loss = self.components.loss
        self.models[name] = model
        self.train[name] = engine
        if model.rollout is not None:
            self.hybrid[name] = self._hybrid(engine, model, model.rollout)
        for other in self.train.values():  # for losses that compare whole distributions
            if other is not self.train.get(REFERENCE) and hasattr(other, "reference"):
                other.reference = self.train.get(REFERENCE)

    def _hybrid(self, engine: TrainEngine, model: ModelPlan, draws: ComponentRef) -> HybridEngine:
        spec = replace(model.spec, head="lm")  # a value head beside it draws no tokens

        def rollout() -> RolloutEngine:
            built: RolloutEngine = self.components.build(draws, spec, self.ranks)
            return built

        def wanted(name: str) -> bool:
            return not name.startswith(VALUE_HEAD_PREFIX)

        return HybridEngine(engine, rollout, policy=model.policy, keep_name=wanted)

    # ------------------------------------------------------------------ generation

    def generate(
        self,
        name: str,
        prompts: Shipment,
        samplings: Sequence[Sampling],
        keys: np.ndarray,
    ) -> Answer:
        """Responses for this rank's prompts, drawn with the newest weights."""
        if name not in self.hybrid:
            raise EngineError(
                f"model {name!r} has no rollout engine", hint="only policy roles can generate"
            )
        hybrid = self.hybrid[name]
        ids = prompts.block().tokens["prompt_ids"]
        cuts = np.cumsum([s.n for s in samplings])[:-1]
        requests = [
            Request(ids.row(i), samplings, [k.tolist() for k in np.split(keys[i], cuts)])
            for i in range(len(ids))
        ]
        with hybrid.generation() as engine:
            began = time.perf_counter()
            done = [c for answer in engine.generate(requests) for c in answer]
            seconds = time.perf_counter() - began
        passages = hybrid.take_transitions()
        lengths = np.array([len(c.ids) for c in done], dtype=np.int64)
        version = np.array([c.version for c in done], dtype=np.int64)
        total = int(lengths.sum())

        def column(values: list[np.ndarray], dtype: type) -> Ragged:
            joined = np.concatenate(values) if values else np.zeros(0)
            return Ragged.from_lengths(joined.astype(dtype, copy=False), lengths)

        tokens = {
            "response_ids": column([c.ids for c in done], np.int64),
            "rollout_logprobs": column([c.logprobs for c in done], np.float32),
            "rollout_logprobs_full": column([c.logprobs_full for c in done], np.float32),
            "response_mask": Ragged.from_lengths(np.ones(total, dtype=np.bool_), lengths),
            "turn_ids": Ragged.from_lengths(np.zeros(total, dtype=np.int16), lengths),
            "token_versions": Ragged.from_lengths(
                np.repeat(version, lengths).astype(np.int32), lengths
            ),
        }
        table = {
            "response_len": lengths,
            "loss_tokens": lengths,
            "truncated": np.array([c.truncated for c in done], dtype=np.bool_),
            "version_min": version,
            "version_max": version,
        }
        report = {
            "seconds": seconds,
            "sync_seconds": sum(passage.seconds for passage in passages),
            "metrics": _surprise(tokens),
        }
        return RowBlock(tokens, table), report

    # ------------------------------------------------------------------ training

    def forward(
        self,
        name: str,
        shipment: Shipment,
        micro: Sequence[Sequence[int]],
        outputs: Mapping[str, str],
        temperature: float,
        adapter: Literal["on", "off"] = "on",
    ) -> Answer:
        """Fields of the model's output, renamed, in the order of the shipment's rows.

        ``values_after`` has one number a row and becomes a sample column.
        """
        began = time.perf_counter()
        block = shipment.block()
        base = {"adapter": adapter} if adapter == "off" else {}
        made = self.train[name].forward(block, micro, list(outputs), temperature, **base)
        tokens = {new: made[old] for old, new in outputs.items() if old != _AFTER}
        table = {new: made[old].values for old, new in outputs.items() if old == _AFTER}
        return RowBlock(tokens, table), {"seconds": time.perf_counter() - began}

    def update(self, name: str, parts: Sequence[Any]) -> Answer:
        """One optimizer step."""
        if name in self.hybrid:
            self.hybrid[name].require_training(f"update of model {name!r}")
        began = time.perf_counter()
        opened = [replace(part, rows=part.rows.block()) for part in parts]
        metrics = dict(self.train[name].update(opened))
        return RowBlock({}), {"seconds": time.perf_counter() - began, "metrics": metrics}

    def estimate(
        self,
        ref: ComponentRef,
        shipment: Shipment,
        scalars: Mapping[str, Any],
    ) -> Answer:
        """Run an estimator of scope ``row`` or ``group``, or what follows it, on this rank's rows.

        What follows is a correction, or the ``prepare`` of a loss that selects tokens.

        A rank without rows calls it as well: it joins every reduction, with nothing to add.
        """
        from bestiary.distributed.collectives import reduce_over

        began = time.perf_counter()
        block = shipment.block()
        rows = Rows.from_block(block)
        with boundary(self.components.owner(ref), f"calling {ref}", AlgorithmError):
            built = self.components.build(ref)
            function = built.prepare if ref.kind == "loss" else built
            made = function(rows, reduce_over(self.ranks), **scalars)
            metrics = {name: value for name, value in made.items() if isinstance(value, Stat)}
            columns = {name: value for name, value in made.items() if name not in metrics}
            tokens = _per_token(columns, block.tokens["response_mask"].lengths, rows)
        if "advantages" in tokens:
            size = np.abs(tokens["advantages"].values)
            metrics["advantages/abs_mean"] = Stat(float(size.sum(dtype=np.float64)), size.size)
        return RowBlock(tokens), {"seconds": time.perf_counter() - began, "metrics": metrics}

    def compute(
        self, expression: Expression, shipment: Shipment, reduction: Reduction | None
    ) -> Answer:
        """Arithmetic on token columns: the column ``value``, of tokens or one number a row."""
        began = time.perf_counter()
        block = shipment.block()
        values = evaluate(expression, block)
        if reduction is None:
            lengths = block.tokens[MASK].lengths
            made = RowBlock({"value": Ragged.from_lengths(values, lengths)})
        else:
            made = RowBlock({}, {"value": reduce_rows(values, block, reduction)})
        return made, {"seconds": time.perf_counter() - began}

    # ------------------------------------------------------------------ state

    def describe(self, name: str) -> dict[str, Any]:
        """Version, size and limits of a model."""
        engine = self.train[name]
        return {
            "version": engine.version,
            "parameters": int(getattr(engine, "parameter_count", 0)),
            "max_length": int(getattr(engine, "max_length", 0) or 0),
            "width": hidden_size(Path(self.models[name].spec.path)),
            "rank": self.ranks.rank,
        }

    def save(self, name: str, folder: str) -> None:
        """This rank's share of a model's training state."""
        self.train[name].save(Path(folder))

    def load(self, name: str, folder: str) -> None:
        """Restore a model's training state; the next generation syncs."""
        self.train[name].load(Path(folder))
        if name in self.hybrid:
            self.hybrid[name].forget_weights()

    def export(self, name: str, folder: str) -> None:
        """Write the model in ``save_pretrained`` layout (rank 0 writes, all take part)."""
        from bestiary.models.saving import save_model

        buckets = self.train[name].export()
        if self.ranks.rank == 0:
            save_model(Path(folder), Path(self.models[name].spec.path), buckets)
        else:
            for _ in buckets:  # a sharded export is made by all ranks together
                pass
        engine: Any = self.train[name]
        if getattr(engine, "lora", None) is not None:
            engine.export_adapter(Path(folder).parent / "adapter")


def _surprise(tokens: Mapping[str, Ragged]) -> dict[str, Stat]:
    """Mean −log π of sampled tokens: an unbiased estimate of the policy's entropy.

    Where the vocabulary was truncated, also what that did to the log-probabilities.
    """
    full, drawn = tokens["rollout_logprobs_full"].values, tokens["rollout_logprobs"].values
    count = float(len(full))
    out = {"entropy": Stat(-float(full.sum(dtype=np.float64)), count)}
    if not np.array_equal(full, drawn):
        gap = float((drawn - full).sum(dtype=np.float64))
        out["kl/truncation"] = Stat(gap, count)
    return out


def _per_token(made: Mapping[str, Any], lengths: np.ndarray, rows: Rows) -> dict[str, Ragged]:
    """An estimator's columns as token columns: [B] is broadcast over the response."""
    tokens = {}
    for name, value in made.items():
        if tuple(value.shape) not in ((rows.size,), tuple(rows.mask.shape)):
            raise ValueError(
                f"{name!r} has the shape {tuple(value.shape)}; wanted [{rows.size}] or "
                f"{list(rows.mask.shape)}"
            )
        wide = value if value.dim() == 2 else value[:, None].expand(rows.mask.shape)
        tokens[name] = Ragged.from_padded(wide.detach().numpy(), lengths)
    return tokens
