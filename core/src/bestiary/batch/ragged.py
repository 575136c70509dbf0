"""Ragged token columns in numpy, so that Ray moves them without copying."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Ragged:
    """Sequences of different lengths, stored end to end.

    Args:
        values: [N] all tokens of all rows.
        offsets: [n + 1] int64; row i is ``values[offsets[i]:offsets[i + 1]]``.
    """

    values: Array
    offsets: NDArray[np.int64]

    def __post_init__(self) -> None:
        if self.offsets[0] != 0 or self.offsets[-1] != len(self.values):
            raise ValueError(
                f"offsets run from {self.offsets[0]} to {self.offsets[-1]} "
                f"over {len(self.values)} values"
            )

    @classmethod
    def from_rows(cls, rows: Sequence[Any], dtype: Any = None) -> "Ragged":  # noqa: ANN401
        """Join sequences (lists or arrays) into one column."""
        lengths = np.fromiter((len(row) for row in rows), dtype=np.int64, count=len(rows))
        parts = [np.asarray(row, dtype=dtype) for row in rows if len(row)]
        values = np.concatenate(parts) if parts else np.zeros(0, dtype=dtype or np.int64)
        return cls.from_lengths(values, lengths)

    @classmethod
    def from_lengths(cls, values: Array, lengths: Array) -> "Ragged":
        """Cut ``values`` into rows of the given lengths."""
        offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
        np.cumsum(lengths, out=offsets[1:])
        return cls(values, offsets)

    @classmethod
    def from_padded(cls, padded: Array, lengths: Array) -> "Ragged":
        """Drop the right padding of a [n, T] array."""
        live = np.arange(padded.shape[1])[None, :] < np.asarray(lengths)[:, None]
        return cls.from_lengths(padded[live], np.asarray(lengths, dtype=np.int64))

    @classmethod
    def concat(cls, columns: Iterable["Ragged"]) -> "Ragged":
        """Rows of several columns, one after another."""
        columns = list(columns)
        return cls.from_lengths(
            np.concatenate([c.values for c in columns]),
            np.concatenate([c.lengths for c in columns]),
        )

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> NDArray[np.int64]:
        """[n] tokens in each row."""
        return np.diff(self.offsets)

    @property
    def size_bytes(self) -> int:
        """Bytes of values and offsets."""
        return int(self.values.nbytes + self.offsets.nbytes)

    def row(self, index: int) -> Array:
        """The tokens of one row, as a view."""
        return self.values[self.offsets[index] : self.offsets[index + 1]]

    def take(self, index: Sequence[int] | Array) -> "Ragged":
        """The rows at ``index``, in that order, copied."""
        index = np.asarray(index, dtype=np.int64)
        lengths = self.lengths[index]
        out = np.zeros(len(index) + 1, dtype=np.int64)
        np.cumsum(lengths, out=out[1:])
        # Position of each output token in the source: its row's start plus its place in the row.
        source = np.repeat(self.offsets[:-1][index] - out[:-1], lengths) + np.arange(out[-1])
        return Ragged(self.values[source], out)

    def padded(self, fill: float = 0, width: int | None = None) -> Array:
        """[n, T] with ``fill`` to the right of each row; T is the longest row unless given."""
        lengths = self.lengths
        width = int(lengths.max(initial=0)) if width is None else width
        out = np.full((len(self), width), fill, dtype=self.values.dtype)
        out[np.arange(width)[None, :] < lengths[:, None]] = self.values
        return out


@dataclass(frozen=True, slots=True)
class RowBlock:
    """Several columns of the same n rows: what one worker holds.

    Args:
        tokens: token columns by name.
        table: sample columns by name, [n] arrays (numbers, or objects for text and JSON).
    """

    tokens: Mapping[str, Ragged]
    table: Mapping[str, Array] = field(default_factory=dict)

    def __post_init__(self) -> None:
        sizes = {name: len(column) for name, column in self.tokens.items()}
        sizes |= {name: len(column) for name, column in self.table.items()}
        if len(set(sizes.values())) > 1:
            raise ValueError(f"columns of one block have different numbers of rows: {sizes}")

    def __len__(self) -> int:
        for column in self.tokens.values():
            return len(column)
        for values in self.table.values():
            return len(values)
        return 0

    def take(self, index: Sequence[int] | Array) -> "RowBlock":
        """The rows at ``index``, in that order."""
        index = np.asarray(index, dtype=np.int64)
        return RowBlock(
            {name: column.take(index) for name, column in self.tokens.items()},
            {name: column[index] for name, column in self.table.items()},
        )

    @property
    def size_bytes(self) -> int:
        """Bytes of the token columns."""
        return sum(column.size_bytes for column in self.tokens.values())
