"""The chosen estimator, run where its scope says."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from bestiary.batch import Batch, Column, Ragged, Ready, RowBlock, Rows, ship
from bestiary.distributed.collectives import LocalReduce
from bestiary.errors import AlgorithmError, Owner, boundary
from bestiary.protocols import (
    AdvantageEstimator,
    AdvantageOptions,
    ComponentRef,
    LossOptions,
    Stat,
)
from bestiary.roles.model import Group
from bestiary.roles.row_weights import valid_rows
from bestiary.roles.services import Services, spread

_MASK = "response_mask"


class _Needs(Protocol):
    """What the options of estimators and corrections say."""

    @property
    def requires(self) -> frozenset[str]: ...
    @property
    def optional(self) -> frozenset[str]: ...
    @property
    def provides(self) -> frozenset[str]: ...


@dataclass(frozen=True, slots=True)
class Part:
    """What runs after the estimator: a correction, or the pass of a loss that selects tokens.

    Args:
        reference: the component, for the workers.
        options: what it needs and makes.
        owner: who provides it.
    """

    reference: ComponentRef
    options: _Needs
    owner: Owner | None = None


@dataclass(frozen=True, slots=True)
class Selection:
    """The needs of a loss's ``prepare``, from its options."""

    loss: LossOptions

    @property
    def requires(self) -> frozenset[str]:
        """What the loss reads and does not make itself."""
        return self.loss.requires - self.loss.selects

    @property
    def optional(self) -> frozenset[str]:
        """Nothing."""
        return frozenset()

    @property
    def provides(self) -> frozenset[str]:
        """The columns of its selection."""
        return self.loss.selects


class AdvantageRole:
    """Calls an estimator on the trainable rows, then the parts; other rows get 0.

    Args:
        reference: the estimator, for the workers.
        estimator: the estimator, for scope ``sample``.
        options: its options, which say what it needs.
        group: the workers that hold the shards.
        owner: who provides it.
        parts: what weights or selects tokens afterwards, in this order.
    """

    def __init__(
        self,
        reference: ComponentRef,
        estimator: AdvantageEstimator,
        options: AdvantageOptions,
        group: Group,
        services: Services,
        owner: Owner | None = None,
        parts: Sequence[Part] = (),
    ) -> None:
        self.reference = reference
        self.estimator = estimator
        self.options = options
        self.group = group
        self.services = services
        self.owner = owner
        self.parts = tuple(parts)

    def __call__(self, batch: Batch, **scalars: Any) -> Batch:  # noqa: ANN401 - numbers and names
        """The columns of the estimator and of the parts, for every row of the batch."""
        self._check(batch, self.reference, self.options, self.owner)
        if self.options.scope == "sample":
            made = self._on_controller(batch, scalars)
        else:
            group = self.options.scope == "group"
            made = self._on_shards(batch, self.reference, self.options, scalars, group)
        for part in self.parts:
            joined = batch.join(made)
            self._check(joined, part.reference, part.options, part.owner)
            made = made.join(self._on_shards(joined, part.reference, part.options, {}, False))
        return made

    @staticmethod
    def _check(batch: Batch, reference: ComponentRef, options: _Needs, owner: Owner | None) -> None:
        missing = sorted(name for name in options.requires if name not in batch)
        if missing:
            raise AlgorithmError(
                f"{reference} needs the columns {missing}, which nobody has made",
                owner=owner,
                hint=f"columns that are there: {', '.join(batch.names())}",
            )

    # ------------------------------------------------------------------ scope sample

    def _on_controller(self, batch: Batch, scalars: dict[str, Any]) -> Batch:
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
        columns["valid"] = torch.from_numpy(valid_rows(rows))
        mask = torch.ones(len(rows), 1, dtype=torch.bool)
        text = {n: list(c) for n, c in table.items() if c.dtype == object}
        with boundary(self.owner, f"calling {self.reference}", AlgorithmError):
            made = self.estimator(Rows(columns, mask, text), LocalReduce(), **scalars)
        out: dict[str, Any] = {}
        for name, value in made.items():
            if isinstance(value, Stat):
                self.services.ledger.add(name, value)
                continue
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

    def _on_shards(
        self,
        batch: Batch,
        reference: ComponentRef,
        options: _Needs,
        scalars: dict[str, Any],
        whole_groups: bool,
    ) -> Batch:
        live = np.flatnonzero(batch["trainable"].astype(bool))
        rows = batch.take(live)
        rows = rows.with_columns(group=rows.group_index(), valid=valid_rows(rows))
        runs = self._shards(rows, whole_groups)
        read = sorted(options.requires | options.optional)
        tokens = [n for n in dict.fromkeys((_MASK, *read)) if n in rows.columns]
        table = [n for n in read if n in rows and n not in rows.columns]
        table += [n for n in ("group", "valid", "response_len") if n not in table]
        calls = [(reference, ship(rows, run, tokens, table), scalars) for run in runs]
        handles = self.group.call("estimate", calls)
        self.services.ledger.note("score", handles)
        # Rows that are not trained on get zeros, so that the result covers the whole batch.
        names, lengths = sorted(options.provides), batch["response_len"].astype(np.int64)
        zeros = Ragged.from_lengths(np.zeros(int(lengths.sum())), lengths)
        part = np.full(len(batch), len(handles), dtype=np.int32)
        place = np.arange(len(batch), dtype=np.int64)
        for rank, run in enumerate(runs):
            part[live[run]] = rank
            place[live[run]] = np.arange(len(run))
        column = Column((*handles, Ready(RowBlock(dict.fromkeys(names, zeros)))), part, place)
        return Batch({"row_key": batch["row_key"]}, dict.fromkeys(names, column))

    def _shards(self, rows: Batch, whole_groups: bool) -> list[np.ndarray]:
        """The rows of each rank."""
        tokens = rows["response_len"] + 1
        if not whole_groups:
            return spread(tokens, self.group.size)
        group = rows.group_index()
        sizes = np.bincount(group, weights=tokens, minlength=1)
        return [np.flatnonzero(np.isin(group, chosen)) for chosen in spread(sizes, self.group.size)]
