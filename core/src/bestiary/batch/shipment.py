"""Shipment: some rows of a batch on their way to one worker."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np

from bestiary.batch.batch import Batch, Column, Handle, Ready
from bestiary.batch.ragged import Array, Ragged, RowBlock


@dataclass(frozen=True, slots=True)
class Shipment:
    """Token columns by reference and sample columns by value, all of the same n rows."""

    columns: Mapping[str, Column]
    table: Mapping[str, Array]

    def block(self) -> RowBlock:
        """Bring the rows together on the worker; each block is fetched once."""
        fetched: dict[int, RowBlock] = {}

        def fetch(handle: Handle) -> RowBlock:
            if id(handle) not in fetched:
                fetched[id(handle)] = handle.get()
            return fetched[id(handle)]

        tokens: dict[str, Ragged] = {}
        for name, column in self.columns.items():
            blocks = [fetch(handle).tokens[column.name or name] for handle in column.handles]
            if not blocks:  # a rank without rows still takes part
                tokens[name] = Ragged.from_rows([], dtype=np.int64)
                continue
            if len(blocks) == 1:
                tokens[name] = blocks[0].take(column.row)
                continue
            start = np.cumsum([0, *(len(block) for block in blocks)])
            tokens[name] = Ragged.concat(blocks).take(start[column.part] + column.row)
        return RowBlock(tokens, dict(self.table))


def ship(
    batch: Batch, index: Array, tokens: Collection[str], table: Collection[str] = ()
) -> Shipment:
    """Pack the rows at ``index`` with the named columns.

    Blocks in the controller's own process travel by value, cut to the rows that are needed;
    all others travel as references.
    """
    index = np.asarray(index, dtype=np.int64)
    columns = {name: _slim(name, batch.columns[name].take(index)) for name in tokens}
    return Shipment(columns, {name: batch[name][index] for name in table})


def _slim(name: str, column: Column) -> Column:
    """Drop handles that no row uses and rows of local blocks that are not needed."""
    handles: list[Handle] = []
    part = np.zeros(len(column.part), dtype=np.int32)
    row = column.row.copy()
    for old in np.unique(column.part):
        mine = column.part == old
        handle = column.handles[old]
        if isinstance(handle, Ready):
            needed, place = np.unique(column.row[mine], return_inverse=True)
            own = column.name or name
            handle = Ready(RowBlock({own: handle.block.tokens[own].take(needed)}))
            row[mine] = place
        part[mine] = len(handles)
        handles.append(handle)
    return Column(tuple(handles), part, row, column.name)
