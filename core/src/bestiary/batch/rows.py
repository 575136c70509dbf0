"""Rows: what authors of losses and estimators see."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor

    from bestiary.batch.ragged import RowBlock


class Rows(Mapping[str, "Tensor"]):
    """Whole rows, right-padded over their response tokens.

    ``x["name"]`` is [B, T] for a token column and [B] for a numeric sample column. A sample
    column asked for through :meth:`per_token` is broadcast over its response. Text columns are in
    ``x.text``. ``prompt_ids`` is padded to its own width.

    Args:
        columns: numeric columns as tensors.
        mask: [B, T] bool, True exactly on tokens that the policy sampled.
        text: text and JSON columns as lists.
    """

    def __init__(
        self,
        columns: Mapping[str, "Tensor"],
        mask: "Tensor",
        text: Mapping[str, Sequence[Any]] | None = None,
    ) -> None:
        self._columns = dict(columns)
        self.mask = mask
        self.text = dict(text or {})

    @classmethod
    def from_block(cls, block: "RowBlock", width: int | None = None) -> "Rows":
        """Pad the columns of a block; T is the longest response unless ``width`` is given."""
        import torch

        columns: dict[str, Tensor] = {}
        text: dict[str, Sequence[Any]] = {}
        response = block.tokens.get("response_ids") or block.tokens["response_mask"]
        width = int(response.lengths.max(initial=0)) if width is None else width
        for name, ragged in block.tokens.items():
            own = None if name in _OTHER_WIDTH else width
            columns[name] = torch.from_numpy(ragged.padded(width=own))
        for name, column in block.table.items():
            if column.dtype == object or column.dtype.kind in "US":
                text[name] = list(column)
            else:
                columns[name] = torch.from_numpy(np.array(column))
        if "response_mask" in columns:
            mask = columns["response_mask"].bool()
        else:
            lengths = torch.from_numpy(response.lengths)
            mask = torch.arange(width)[None, :] < lengths[:, None]
        return cls(columns, mask, text)

    def __getitem__(self, name: str) -> "Tensor":
        try:
            return self._columns[name]
        except KeyError:
            known = ", ".join(sorted((*self._columns, *self.text)))
            raise KeyError(f"no column {name!r}; there are: {known}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        """Number of columns (a mapping's length); the number of rows is ``size``."""
        return len(self._columns)

    @property
    def size(self) -> int:
        """B, the number of rows."""
        return int(self.mask.shape[0])

    def per_token(self, name: str) -> "Tensor":
        """[B, T]: a token column as it is, a sample column broadcast; 0 where masked."""
        x = self[name]
        if x.dim() == 1:
            x = x[:, None].expand(self.mask.shape)
        return x.masked_fill(~self.mask, 0)

    def with_columns(self, **columns: "Tensor") -> "Rows":
        """The same rows with more columns."""
        return Rows({**self._columns, **columns}, self.mask, self.text)


_OTHER_WIDTH = frozenset({"prompt_ids", "target_ids", "rejected_ids"})
