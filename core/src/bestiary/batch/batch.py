"""Batch: the controller's view of rows whose token columns live elsewhere."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from bestiary.batch.ragged import Array, Ragged, RowBlock


class Handle(Protocol):
    """A block that may not be there yet."""

    def get(self) -> RowBlock:
        """Wait for the block and bring it here."""
        ...

    def table(self) -> Mapping[str, Array]:
        """Wait for the sample columns only; token columns do not move."""
        ...


@dataclass(frozen=True, slots=True)
class Ready:
    """A block that is in this process."""

    block: RowBlock

    def get(self) -> RowBlock:
        """The block."""
        return self.block

    def table(self) -> Mapping[str, Array]:
        """The block's sample columns."""
        return self.block.table


@dataclass(frozen=True, slots=True)
class Column:
    """Where each row of one column is: row ``row[i]`` of ``handles[part[i]]``.

    ``name`` is what the blocks call it, where that is not the batch's name for it.
    """

    handles: tuple[Handle, ...]
    part: NDArray[np.int32]
    row: NDArray[np.int64]
    name: str = ""

    @classmethod
    def of(cls, handles: Sequence[Handle], sizes: Sequence[int]) -> "Column":
        """Rows of whole blocks, one after another."""
        part = np.repeat(np.arange(len(handles), dtype=np.int32), sizes)
        row = np.concatenate([np.arange(n, dtype=np.int64) for n in sizes]) if sizes else part
        return cls(tuple(handles), part, row.astype(np.int64))

    def take(self, index: NDArray[np.int64]) -> "Column":
        """The rows at ``index``; nothing moves."""
        return Column(self.handles, self.part[index], self.row[index], self.name)

    def then(self, other: "Column") -> "Column":
        """These rows, then those of ``other``."""
        place = {id(handle): i for i, handle in enumerate(self.handles)}
        handles = list(self.handles)
        for handle in other.handles:
            if id(handle) not in place:
                place[id(handle)] = len(handles)
                handles.append(handle)
        move = np.array([place[id(handle)] for handle in other.handles], dtype=np.int32)
        moved = move[other.part] if len(move) else other.part
        part, row = np.concatenate([self.part, moved]), np.concatenate([self.row, other.row])
        return Column(tuple(handles), part, row, self.name)


def row_key(*parts: object) -> int:
    """A uint64 that names a row: a hash of its parts, equal on every machine."""
    text = "\x1f".join(str(part) for part in parts)
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")


class Batch:
    """Rows with sample columns here and token columns by reference.

    Rows are named by the uint64 sample column ``row_key``; :meth:`join` aligns by it, and groups
    are rows of equal ``group_uid``. Selecting, joining and cutting into mini-batches moves nothing.

    Args:
        table: sample columns, [B] arrays; must hold ``row_key``.
        columns: token columns.
        waiting: sample columns that a handle will deliver.
    """

    def __init__(
        self,
        table: Mapping[str, Array],
        columns: Mapping[str, Column] | None = None,
        waiting: Mapping[str, Column] | None = None,
    ) -> None:
        self._table = dict(table)
        self.columns = dict(columns or {})
        self._waiting = dict(waiting or {})
        sizes = {name: len(column) for name, column in self._table.items()}
        if "row_key" not in sizes:
            raise ValueError("a batch needs the sample column 'row_key'")
        if len(set(sizes.values())) > 1:
            raise ValueError(f"sample columns have different numbers of rows: {sizes}")

    # ------------------------------------------------------------------ reading

    def __len__(self) -> int:
        return len(self._table["row_key"])

    def __contains__(self, name: str) -> bool:
        return name in self._table or name in self._waiting or name in self.columns

    def __getitem__(self, name: str) -> Array:
        """A sample column; waits for it where it is not there yet."""
        if name in self._waiting:
            self._arrive(self._waiting[name])
        try:
            return self._table[name]
        except KeyError:
            kind = "a token column: use .tokens(name)" if name in self.columns else "unknown"
            known = ", ".join(self.names())
            raise KeyError(f"sample column {name!r} is {kind}; there are: {known}") from None

    def optional(self, name: str) -> Array | None:
        """A sample column, or None where the batch has none of that name."""
        return self[name] if name in self.names() else None

    def names(self) -> list[str]:
        """The names of all columns."""
        return sorted({*self._table, *self._waiting, *self.columns})

    def sample_columns(self) -> dict[str, Array]:
        """All sample columns, waiting for those that are not there yet."""
        for name in list(self._waiting):
            self[name]
        return dict(self._table)

    def tokens(self, name: str) -> Ragged:
        """A token column, brought here: for records and tests, not for the training path."""
        column = self.columns[name]
        blocks = [handle.get().tokens[column.name or name] for handle in column.handles]
        start = np.cumsum([0, *(len(block) for block in blocks)])
        return Ragged.concat(blocks).take(start[column.part] + column.row)

    def _arrive(self, column: Column) -> None:
        """Bring every sample column that comes with the same handles."""
        together = [n for n, c in self._waiting.items() if c.handles == column.handles]
        tables = [handle.table() for handle in column.handles]
        start = np.cumsum([0, *(len(next(iter(t.values()))) for t in tables)])
        for name in together:
            where = self._waiting.pop(name)
            whole = np.concatenate([table[name] for table in tables])
            self._table[name] = whole[start[where.part] + where.row]

    # ------------------------------------------------------------------ making others

    def take(self, index: Sequence[int] | Array) -> "Batch":
        """The rows at ``index`` (numbers or a bool mask), in that order."""
        index = np.asarray(index)
        index = np.flatnonzero(index) if index.dtype == bool else index.astype(np.int64)
        return Batch(
            {name: column[index] for name, column in self._table.items()},
            {name: column.take(index) for name, column in self.columns.items()},
            {name: column.take(index) for name, column in self._waiting.items()},
        )

    def with_columns(self, **table: Array | Sequence[Any]) -> "Batch":
        """The same rows with more (or replaced) sample columns."""
        new = {name: as_column(values) for name, values in table.items()}
        waiting = {name: c for name, c in self._waiting.items() if name not in new}
        return Batch({**self._table, **new}, self.columns, waiting)

    def without(self, *names: str) -> "Batch":
        """The same rows without some columns."""

        def keep(columns: Mapping[str, Any]) -> dict[str, Any]:
            return {name: column for name, column in columns.items() if name not in names}

        return Batch(keep(self._table), keep(self.columns), keep(self._waiting))

    def renamed(self, old: str, new: str) -> "Batch":
        """The same rows with a token column under another name."""
        columns = dict(self.columns)
        column = columns.pop(old)
        columns[new] = replace(column, name=column.name or old)
        return Batch(self._table, columns, self._waiting)

    def join(self, *others: "Batch") -> "Batch":
        """These rows with the columns of the others, aligned by ``row_key``.

        A column that is already there is replaced. Rows that an other lacks are an error.
        """
        table, columns, waiting = dict(self._table), dict(self.columns), dict(self._waiting)
        for other in others:
            aligned = self._align(other)
            for name in aligned.names():
                for home in (table, columns, waiting):
                    if name != "row_key":
                        home.pop(name, None)
            table.update({n: c for n, c in aligned._table.items() if n != "row_key"})
            columns.update(aligned.columns)
            waiting.update(aligned._waiting)
        return Batch(table, columns, waiting)

    def _align(self, other: "Batch") -> "Batch":
        mine, theirs = self._table["row_key"], other._table["row_key"]
        if len(mine) == len(theirs) and bool(np.all(mine == theirs)):
            return other
        place = {int(key): i for i, key in enumerate(theirs)}
        missing = [int(key) for key in mine if int(key) not in place]
        if missing:
            raise ValueError(
                f"join: {len(missing)} of {len(mine)} rows are not in the other batch "
                f"of {len(theirs)}"
            )
        return other.take(np.array([place[int(key)] for key in mine], dtype=np.int64))

    @staticmethod
    def concat(batches: Sequence["Batch"]) -> "Batch":
        """The rows of several batches; they must have the same columns."""
        first, *rest = batches
        for other in rest:
            if other.names() != first.names():
                differ = sorted(set(first.names()) ^ set(other.names()))
                raise ValueError(f"concat: columns {differ} are not in every batch")
        table = {
            name: np.concatenate([batch[name] for batch in batches])
            for name in first.sample_columns()
        }
        columns: dict[str, Column] = {}
        for name, column in first.columns.items():
            for other in rest:
                if (other.columns[name].name or name) != (column.name or name):
                    raise ValueError(f"concat: column {name!r} has different origins")
                column = column.then(other.columns[name])
            columns[name] = column
        return Batch(table, columns)

    # ------------------------------------------------------------------ groups and mini-batches

    def group_index(self) -> NDArray[np.int64]:
        """[B] the number of each row's group, in order of first appearance."""
        seen: dict[Any, int] = {}
        return np.array([seen.setdefault(g, len(seen)) for g in self["group_uid"]], dtype=np.int64)

    def groups(self) -> list["Batch"]:
        """One batch for each group, baseline rows included."""
        index = self.group_index()
        return [self.take(index == g) for g in range(int(index.max(initial=-1)) + 1)]

    def trainable(self) -> "Batch":
        """The rows that are trained on."""
        return self.take(self["trainable"].astype(bool)) if "trainable" in self else self

    def minibatches(self, n: int, *, epochs: int = 1, seed: int = 0) -> Iterator["Batch"]:
        """Cut the trainable rows into ``n`` mini-batches of whole groups, ``epochs`` times.

        Groups are shuffled anew in each epoch by (seed, epoch), except for ``n = 1``, where the
        order is left alone. Sizes differ by one group at most; each row comes once an epoch.

        Raises:
            ValueError: if there are fewer groups than mini-batches.
        """
        rows = self.trainable()
        group = rows.group_index()
        count = int(group.max(initial=-1)) + 1
        if not 1 <= n <= count:
            raise ValueError(f"minibatches: {n} mini-batches cannot be cut from {count} groups")
        for epoch in range(epochs):
            if n == 1:
                yield rows
                continue
            order = np.random.default_rng([seed, epoch]).permutation(count)
            for chosen in np.array_split(order, n):
                yield rows.take(np.flatnonzero(np.isin(group, chosen)))

    def with_response(self, column: str) -> "Batch":
        """Rows whose response is the token column ``column``: supervised data."""
        rows = self.renamed(column, "response_ids")
        lengths = self.tokens(column).lengths
        every = np.ones(len(self), dtype=bool)
        return rows.with_columns(
            response_len=lengths, loss_tokens=lengths, trainable=every, valid=every
        )

    def map(self, name: str, function: Callable[[Any], Any]) -> list[Any]:
        """``function`` over a sample column, for records and tests."""
        return [function(value) for value in self[name]]


def as_column(values: Array | Sequence[Any]) -> Array:
    """A sample column: numbers as they are, text and JSON values as objects."""
    if isinstance(values, np.ndarray):
        return values
    values = list(values)
    if values and not isinstance(values[0], (bool, int, float, np.generic)):
        out = np.empty(len(values), dtype=object)
        out[:] = values
        return out
    return np.asarray(values)
