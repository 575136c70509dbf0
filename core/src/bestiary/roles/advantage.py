"""The chosen estimator, run where its scope says."""

from typing import Any

import numpy as np

from bestiary.batch import Batch, Column, Rows, ship
from bestiary.distributed.collectives import LocalReduce
from bestiary.engines.microbatch import plan_microbatches
from bestiary.errors import AlgorithmError, Owner, boundary
from bestiary.protocols import AdvantageEstimator, AdvantageOptions, ComponentRef, Stat
from bestiary.roles.model import Group
from bestiary.roles.services import Services

_LAYOUT = ("response_mask",)


class AdvantageRole:
    """Calls an estimator on the trainable rows; other rows get 0.

    Args:
        reference: the estimator, for the workers.
        estimator: the estimator, for scope ``sample``.
        options: its options, which say what it needs.
        group: the workers that hold the shards.
        owner: who provides it.
    """

    def __init__(
        self,
        reference: ComponentRef,
        estimator: AdvantageEstimator,
        options: AdvantageOptions,
        group: Group,
        services: Services,
        owner: Owner | None = None,
    ) -> None:
        self.reference = reference
        self.estimator = estimator
        self.options = options
        self.group = group
        self.services = services
        self.owner = owner

    def __call__(self, batch: Batch, **scalars: float) -> Batch:
        """The columns that the estimator provides, for every row of the batch."""
        self._check(batch)
        if self.options.scope == "sample":
            made = self._on_controller(batch, scalars)
        else:
            made = self._on_shards(batch, scalars)
        return made

    def _check(self, batch: Batch) -> None:
        missing = sorted(name for name in self.options.requires if name not in batch)
        if missing:
            raise AlgorithmError(
                f"{self.reference} needs the columns {missing}, which nobody has made",
                owner=self.owner,
                hint=f"columns that are there: {', '.join(batch.names())}",
            )

    # ------------------------------------------------------------------ scope sample

    def _on_controller(self, batch: Batch, scalars: dict[str, float]) -> Batch:
        import torch

        live = np.flatnonzero(batch["trainable"].astype(bool))
        rows = batch.take(live)
        table = rows.sample_columns()
        columns = {
            name: torch.from_numpy(np.array(column))
            for name, column in table.items()
            if column.dtype.kind in "bif"
        }
        columns["group"] = torch.from_numpy(rows.group_index())
        columns.setdefault("valid", torch.ones(len(rows), dtype=torch.bool))
        mask = torch.ones(len(rows), 1, dtype=torch.bool)
        text = {n: list(c) for n, c in table.items() if c.dtype == object}
        with boundary(self.owner, f"calling {self.reference}", AlgorithmError):
            made = self.estimator(Rows(columns, mask, text), LocalReduce(), **scalars)
        out: dict[str, Any] = {}
        for name, value in made.items():
            self._check_result(name, tuple(value.shape), len(rows))
            full = np.zeros(len(batch))
            full[live] = value.double().numpy()
            out[name] = full
        self._summarise(out, live)
        return Batch({"row_key": batch["row_key"], **out})

    def _check_result(self, name: str, shape: tuple[int, ...], rows: int) -> None:
        if shape != (rows,):
            raise AlgorithmError(
                f"{self.reference} has scope 'sample' and returned {name!r} of shape {shape}; "
                f"wanted [{rows}], one number for each row",
                owner=self.owner,
            )

    def _summarise(self, out: dict[str, Any], live: np.ndarray) -> None:
        if "advantages" in out:
            a = out["advantages"][live]
            self.services.ledger.add("advantages/std", Stat(float(a.std()) if len(a) else 0.0))
            size = float(np.abs(a).mean()) if len(a) else 0.0
            self.services.ledger.add("advantages/abs_mean", Stat(size))

    # ------------------------------------------------------------------ scopes row and group

    def _on_shards(self, batch: Batch, scalars: dict[str, float]) -> Batch:
        rows = batch.trainable()
        together = rows.group_index() if self.options.scope == "group" else np.arange(len(rows))
        plan = plan_microbatches(
            np.zeros(len(rows), dtype=np.int64),
            rows["response_len"],
            together,
            world=self.group.size,
            tokens_per_micro=1 << 60,
        )
        rows = rows.with_columns(group=rows.group_index())
        tokens = [n for n in (*_LAYOUT, *sorted(self.options.requires)) if n in rows.columns]
        table = [n for n in sorted(self.options.requires) if n in rows and n not in rows.columns]
        extra = [n for n in ("group", "valid", "response_len") if n in rows and n not in table]
        calls = [
            (self.reference, ship(rows, r.rows, tokens, [*table, *extra]), r.padding, scalars)
            for r in plan.ranks
        ]
        handles = self.group.call("estimate", calls)
        self.services.ledger.note("score", handles)
        part = np.zeros(len(rows), dtype=np.int32)
        place = np.zeros(len(rows), dtype=np.int64)
        for rank, its in enumerate(plan.ranks):
            if not its.padding.all():
                part[its.rows] = rank
                place[its.rows] = np.arange(len(its.rows))
        column = Column(tuple(handles), part, place)
        made = Batch(
            {"row_key": rows["row_key"]}, dict.fromkeys(sorted(self.options.provides), column)
        )
        return made
