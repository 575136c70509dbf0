"""Values that may not be there yet: one a sample, or one a token."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin
from numpy.typing import NDArray

from bestiary.batch import Batch, Column
from bestiary.batch.expression import MASK, OPERATIONS, Expression, Reduction

if TYPE_CHECKING:
    from torch import Tensor

    from bestiary.library.sequences import Sequences


class PerSample(NDArrayOperatorsMixin):
    """One number a sample; arithmetic makes another one, reading waits.

    It can be given wherever numpy takes an array.

    Args:
        read: brings the numbers, [B].
        valid: which of them are; the others are NaN.
    """

    def __init__(self, read: Callable[[], NDArray[Any]]) -> None:
        self._read = read
        self._values: NDArray[Any] | None = None

    def numpy(self) -> NDArray[Any]:
        """[B], waiting for it."""
        if self._values is None:
            self._values = np.asarray(self._read())
        return self._values

    def tensor(self) -> "Tensor":
        """[B] as a tensor."""
        import torch

        return torch.from_numpy(np.array(self.numpy()))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:  # noqa: ANN401
        values = self.numpy() if dtype is None else self.numpy().astype(dtype)
        return np.array(values) if copy else values

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:  # noqa: ANN401
        if any(isinstance(x, PerToken) for x in inputs):
            return NotImplemented  # the token column does it, where its tokens are
        if method != "__call__" or options.get("out") is not None:
            return getattr(ufunc, method)(*(_plain(x) for x in inputs), **options)
        return PerSample(lambda: ufunc(*(_plain(x) for x in inputs), **options))

    def mean(self, dim: int | None = None) -> float:
        """Over the samples that have a value."""
        return float(np.nanmean(self.numpy()))

    def std(self, dim: int | None = None) -> float:
        """Over the samples that have a value; of the population."""
        return float(np.nanstd(self.numpy()))

    def sum(self, dim: int | None = None) -> float:
        """Over the samples that have a value."""
        return float(np.nansum(self.numpy()))

    def tolist(self) -> list[Any]:
        """As numbers of Python."""
        return list(self.numpy().tolist())

    def __len__(self) -> int:
        return len(self.numpy())

    def __getitem__(self, index: Any) -> Any:  # noqa: ANN401 - as of an array
        return self.numpy()[index]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.numpy())

    def __repr__(self) -> str:
        return f"PerSample({self.numpy()!r})"


def _plain(x: Any) -> Any:  # noqa: ANN401 - whatever a ufunc takes
    return x.numpy() if isinstance(x, PerSample) else x


class PerToken(NDArrayOperatorsMixin):
    """One number for each response token, where the workers have it.

    Arithmetic with numbers, with one value a sample and with other columns of the same sequences
    is sent to the workers when a result is read. Tokens that the policy did not sample count in
    no sum or mean.

    Args:
        of: the sequences whose tokens these are.
        expression: how it is computed from the columns.
        tokens: token columns by the names in the expression.
        samples: values of each sample by the names in the expression.
    """

    def __init__(
        self,
        of: "Sequences",
        expression: Expression,
        tokens: Mapping[str, Batch],
        samples: Mapping[str, Any] | None = None,
    ) -> None:
        self.of = of
        self.expression = expression
        self.tokens = dict(tokens)
        self.samples = dict(samples or {})
        self._column: Batch | None = None

    @classmethod
    def column(cls, of: "Sequences", batch: Batch, name: str) -> "PerToken":
        """A column of a batch whose rows include those of the sequences."""
        where = batch.columns[name]
        own = Batch({"row_key": batch["row_key"]}, {"x": replace(where, name=where.name or name)})
        key = f"{name}@{id(own)}"
        return cls(of, ("token", key), {key: own})

    # ------------------------------------------------------------------ reading

    def sum(self, dim: int = -1) -> PerSample:
        """The sum over the sampled tokens of each response."""
        return self._reduced("sum", dim)

    def mean(self, dim: int = -1) -> PerSample:
        """The mean over the sampled tokens of each response; 0 for an empty one."""
        return self._reduced("mean", dim)

    def tensor(self) -> "Tensor":
        """[B, T] float64, 0 right of each response: brought here, which is counted."""
        import torch

        batch = self.batch("value")
        return torch.from_numpy(batch.tokens("value").padded().astype(np.float64))

    def batch(self, name: str) -> Batch:
        """The rows of the sequences with this as the token column ``name``; nothing moves."""
        if self.expression[0] == "token":
            return self.of.sampled.join(self._renamed(self.expression[1], name))
        if self._column is None:
            self._column = self.of.compute(self, None)
        return self.of.sampled.join(self._column.renamed("value", name))

    def joined(self) -> Batch:
        """The rows of the sequences with every column of the expression under its name there."""
        rows = self.of.sampled
        for name in self.tokens:
            rows = rows.join(self._renamed(name, name))
        return rows.with_columns(
            **{name: _column(name, value, len(rows)) for name, value in self.samples.items()}
        )

    def _renamed(self, name: str, new: str) -> Batch:
        batch = self.tokens[name]
        column: Column = batch.columns["x"]
        return Batch({"row_key": batch["row_key"]}, {new: column})

    def _reduced(self, how: Reduction, dim: int) -> PerSample:
        if dim not in (-1, 1):
            raise ValueError(f"dim={dim}: a column of tokens is reduced over dim=-1")
        made = self.of.compute(self, how)  # submitted now, read later
        return PerSample(lambda: made["value"])

    # ------------------------------------------------------------------ arithmetic

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:  # noqa: ANN401
        name = ufunc.__name__
        if method != "__call__" or name not in OPERATIONS or options:
            raise TypeError(
                f"{name} is not computed where the tokens are; there are {', '.join(OPERATIONS)}, "
                ".sum(dim=-1), .mean(dim=-1), and .tensor() to bring the column here"
            )
        tokens: dict[str, Batch] = {}
        samples: dict[str, Any] = {}
        parts = tuple(self._part(x, tokens, samples) for x in inputs)
        return PerToken(self.of, (name, *parts), tokens, samples)

    def exp(self) -> "PerToken":
        """E to it."""
        return self._call("exp")

    def clamp(self, min: float | None = None, max: float | None = None) -> "PerToken":
        """Cut off at both ends, as in torch."""
        made = self if min is None else self._call("maximum", ("number", float(min)))
        return made if max is None else made._call("minimum", ("number", float(max)))

    def _call(self, name: str, *rest: Expression) -> "PerToken":
        return PerToken(self.of, (name, self.expression, *rest), self.tokens, self.samples)

    def _part(self, x: Any, tokens: dict[str, Batch], samples: dict[str, Any]) -> Expression:  # noqa: ANN401
        if isinstance(x, PerToken):
            if x.of is not self.of:
                raise ValueError("columns of different sequences cannot be combined")
            tokens.update(x.tokens)
            samples.update(x.samples)
            return x.expression
        if isinstance(x, (int, float, np.integer, np.floating)):
            return ("number", float(x))
        key = f"sample@{id(x)}"
        samples[key] = x
        return ("sample", key)

    def __len__(self) -> int:
        return len(self.of.sampled)

    def __repr__(self) -> str:
        return f"PerToken(rows={len(self)}; .tensor() brings the values)"


def _column(name: str, value: Any, rows: int) -> NDArray[Any]:  # noqa: ANN401 - array-like
    found = np.asarray(value.detach().numpy() if hasattr(value, "detach") else value, dtype=float)
    if found.shape != (rows,):
        raise ValueError(
            f"values of the shape {found.shape} for {rows} samples; one number a sample is wanted"
        )
    return found


__all__ = ["MASK", "PerSample", "PerToken"]
