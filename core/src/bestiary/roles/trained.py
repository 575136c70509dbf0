"""What policy and value roles share: forward passes and updates on a model's ranks."""

from collections.abc import Mapping
from typing import Literal

import numpy as np

from bestiary.batch import Batch, Column, ship
from bestiary.engines.engine_api import TermJob, UpdatePart
from bestiary.engines.microbatch import Plan, plan_microbatches
from bestiary.errors import ConfigError
from bestiary.protocols import ComponentRef, LossOptions, Term
from bestiary.roles.model import Model
from bestiary.roles.row_weights import row_weights, valid_rows
from bestiary.roles.services import Services

_ALWAYS = ("prompt_ids", "response_ids", "response_mask")
_WATCHED = ("rollout_logprobs", "token_weight")
"""Sent with every update where it is there: the first so that losses can report the engine's
mismatch, the second weights the tokens of policy losses."""
_AFTER = "values_after"
_FILLED_IN = frozenset({"old_logprobs"})


class TrainedRole:
    """A view of a model that runs forward passes and, unless frozen, optimizer steps."""

    def __init__(
        self,
        name: str,
        model: Model,
        services: Services,
        *,
        frozen: bool = False,
        temperature: float = 1.0,
        adapter: Literal["on", "off"] = "on",
    ) -> None:
        self.name = name
        self.model = model
        self.services = services
        self.frozen = frozen
        self.temperature = temperature
        self.adapter = adapter

    # ------------------------------------------------------------------ forward

    def _forward(self, batch: Batch, outputs: Mapping[str, str]) -> Batch:
        """Fields of the model's output as token columns under new names; returns at once."""
        plan = self._plan(batch)
        calls = [
            (
                self.model.name,
                ship(batch, part.rows, self._present(batch, _ALWAYS)),
                part.micro,
                dict(outputs),
                self.temperature,
                self.adapter,
            )
            for part in plan.ranks
        ]
        handles = self.model.group.call("forward", calls)
        self.services.ledger.note("score", handles)
        column = _scatter(plan, handles, len(batch))
        tokens = [new for old, new in outputs.items() if old != _AFTER]
        table = [new for old, new in outputs.items() if old == _AFTER]
        return Batch(
            {"row_key": batch["row_key"]},
            dict.fromkeys(tokens, column),
            dict.fromkeys(table, column),
        )

    # ------------------------------------------------------------------ update

    def update(self, batch: Batch, *terms: Term) -> None:
        """One optimizer step on Σ over terms of coef·Σ w·ℓ; returns at once.

        Weights come from the counts of the whole batch (and of a term's own data), so neither
        ranks nor micro-batches change the result.

        Raises:
            ConfigError: for a frozen role, no terms, or a term whose columns are missing.
        """
        if self.frozen:
            raise ConfigError(f"role {self.name!r} is frozen and cannot be updated")
        if not terms:
            raise ConfigError(f"an update of {self.name!r} needs at least one term")
        mine = [term for term in terms if term.data is None]
        parts = [(batch.trainable(), mine)] if mine else []
        parts += [(t.data.trainable(), [t]) for t in terms if t.data is not None]
        jobs: list[list[UpdatePart]] = [[] for _ in range(self.model.group.size)]
        for rows, its_terms in parts:
            for rank, part in enumerate(self._part(rows, its_terms)):
                jobs[rank].append(part)
        handles = self.model.group.call("update", [(self.model.name, job) for job in jobs])
        self.services.ledger.note("update", handles)

    def _part(self, batch: Batch, terms: list[Term]) -> list[UpdatePart]:
        references = [term.reference() for term in terms]
        whole = any(self.services.resolve(ref).unit == "group" for ref in references)
        if whole:
            batch = batch.with_columns(group=batch.group_index())
        tokens, table = self._columns(batch, references)
        weights = [
            self._weights(batch, term, ref) for term, ref in zip(terms, references, strict=True)
        ]
        plan = self._plan(batch, whole=whole)
        parts = []
        for part in plan.ranks:
            live = ~np.asarray(part.padding, dtype=bool)
            jobs = [
                TermJob(ref, w[part.rows] * live)
                for ref, w in zip(references, weights, strict=True)
            ]
            shipment = ship(batch, part.rows, tokens, table)
            parts.append(
                UpdatePart(
                    rows=shipment,  # type: ignore[arg-type]  # the worker unpacks it
                    micro=part.micro,
                    terms=jobs,
                    temperature=self.temperature,
                    dummy=part.dummy,
                )
            )
        return parts

    def _weights(self, batch: Batch, term: Term, reference: ComponentRef) -> np.ndarray:
        options = self.services.resolve(reference)
        mode = term.weights or getattr(options, "weights", None) or options.default_weights
        tokens = batch["loss_tokens"] if "loss_tokens" in batch else batch["response_len"]
        return term.coef * row_weights(
            tokens,
            mode,
            valid=valid_rows(batch),
            sample_weight=batch.optional("sample_weight"),
            length_norm=term.length_norm or getattr(options, "length_norm", None),
        )

    def _columns(self, batch: Batch, references: list[ComponentRef]) -> tuple[list[str], list[str]]:
        """The token columns and sample columns that the losses read."""
        needed: dict[str, ComponentRef] = {}
        for reference in references:
            options: LossOptions = self.services.resolve(reference)
            needed.update(dict.fromkeys(sorted(options.requires), reference))
            there = sorted(name for name in options.optional if name in batch)
            needed.update(dict.fromkeys(there, reference))
        tokens, table = self._present(batch, (*_ALWAYS, *_WATCHED)), []
        table += ["group"] if "group" in batch else []
        needed.pop("group", None)
        for name, reference in needed.items():
            if name in batch.columns:
                tokens += [] if name in tokens else [name]
            elif name in batch:
                table.append(name)
            elif name not in _FILLED_IN:
                raise ConfigError(
                    f"{reference} needs the column {name!r}, which the batch does not have",
                    hint=f"columns that are there: {', '.join(batch.names())}",
                )
        return tokens, table

    # ------------------------------------------------------------------ plan

    @staticmethod
    def _present(batch: Batch, names: tuple[str, ...]) -> list[str]:
        return [name for name in names if name in batch.columns]

    def _plan(self, batch: Batch, *, whole: bool = False) -> Plan:
        group = batch["group_uid"] if "group_uid" in batch else batch["row_key"]
        _, prompt = np.unique(group.astype(str), return_inverse=True)
        return plan_microbatches(
            batch["prompt_len"],
            batch["response_len"],
            prompt,
            world=self.model.group.size,
            tokens_per_micro=self.model.tokens_per_micro,
            whole=whole,
            quadratic=self.model.quadratic,
        )


def _scatter(plan: Plan, handles: object, n: int) -> Column:
    """Where each row of the batch is in the ranks' answers (row i of rank r is its i-th)."""
    part = np.zeros(n, dtype=np.int32)
    row = np.zeros(n, dtype=np.int64)
    for rank, its in enumerate(plan.ranks):
        real = np.flatnonzero(~np.asarray(its.padding, dtype=bool))
        part[its.rows[real]] = rank
        row[its.rows[real]] = real
    return Column(tuple(handles), part, row)  # type: ignore[arg-type]
