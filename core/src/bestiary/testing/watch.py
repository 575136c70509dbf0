"""Rows that remember what was read, and helpers on rows."""

from typing import TYPE_CHECKING

from bestiary.batch import Rows
from bestiary.protocols import Stat

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor


class WatchedRows(Rows):
    """Rows that note each column that is read in ``seen``."""

    def __init__(self, rows: Rows, seen: set[str]) -> None:
        super().__init__(dict(rows.items()), rows.mask, rows.text)
        seen.clear()  # making them has read everything
        self.seen = seen

    def __getitem__(self, name: str) -> "Tensor":
        if hasattr(self, "seen"):
            self.seen.add(name)
        return super().__getitem__(name)

    def with_columns(self, **columns: "Tensor") -> Rows:
        """The same rows with more columns, watched as well."""
        fresh = WatchedRows.__new__(WatchedRows)
        Rows.__init__(fresh, {**self._columns, **columns}, self.mask, self.text)
        fresh.seen = self.seen
        return fresh


def take(rows: Rows, index: "Tensor") -> Rows:
    """The rows at ``index``."""
    columns = {name: x[index] for name, x in rows.items()}
    text = {name: [x[int(i)] for i in index] for name, x in rows.text.items()}
    return Rows(columns, rows.mask[index], text)


def padded(rows: Rows, more: int, fill: float) -> Rows:
    """``more`` tokens of padding, and ``fill`` wherever a token column is masked."""
    import torch

    def wide(x: "Tensor") -> "Tensor":
        if x.dim() == 1:
            return x
        if not x.is_floating_point():
            return torch.nn.functional.pad(x, (0, more))
        x = x.masked_fill(~rows.mask, fill)
        return torch.nn.functional.pad(x, (0, more), value=fill)

    mask = torch.nn.functional.pad(rows.mask, (0, more))
    return Rows({name: wide(x) for name, x in rows.items()}, mask, rows.text)


def tensors(made: "Mapping[str, Tensor | Stat]") -> "dict[str, Tensor]":
    """The columns of a result, without its metrics."""
    return {name: x for name, x in made.items() if not isinstance(x, Stat)}


def close(a: "Tensor", b: "Tensor", what: str) -> None:
    """Equal to rounding, NaN never."""
    import torch

    a, b = a.detach().double(), b.detach().double()
    assert a.shape == b.shape, f"{what}: shapes {tuple(a.shape)} and {tuple(b.shape)}"
    assert torch.allclose(a, b, rtol=1e-6, atol=1e-9), f"{what}: differs by {(a - b).abs().max()}"
