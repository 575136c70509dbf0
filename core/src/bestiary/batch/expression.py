"""Arithmetic on token columns as plain values, so that it can be sent to where the columns are.

An expression is a nested tuple: ``("token", name)``, ``("sample", name)``, ``("number", x)`` or
``(operation, expression, …)``. It is evaluated in float64 on the ragged values of a block.
"""

from collections.abc import Callable
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from bestiary.batch.ragged import RowBlock

Expression = tuple[Any, ...]
Reduction = Literal["sum", "mean"]

OPERATIONS: Final[dict[str, Callable[..., Any]]] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.divide,
    "power": np.power,
    "negative": np.negative,
    "absolute": np.abs,
    "exp": np.exp,
    "log": np.log,
    "minimum": np.minimum,
    "maximum": np.maximum,
}
"""What an expression may do; all of it is elementwise, so rows and padding never mix."""

MASK: Final = "response_mask"
"""The token column that says which tokens the policy sampled."""


def evaluate(expression: Expression, block: RowBlock) -> NDArray[np.float64]:
    """[N] the value of an expression at each token of a block, end to end.

    Args:
        expression: as above; sample columns are repeated over the tokens of their row.
        block: with the columns that it names and the token column ``response_mask``.

    Raises:
        ValueError: for an operation that there is not.
    """
    kind, *rest = expression
    if kind == "token":
        return block.tokens[rest[0]].values.astype(np.float64)
    if kind == "sample":
        each = np.asarray(block.table[rest[0]], dtype=np.float64)
        return np.repeat(each, block.tokens[MASK].lengths)
    if kind == "number":
        return np.full(len(block.tokens[MASK].values), float(rest[0]))
    if kind not in OPERATIONS:
        raise ValueError(f"no operation {kind!r}; there are: {', '.join(OPERATIONS)}")
    found: NDArray[np.float64] = OPERATIONS[kind](*(evaluate(part, block) for part in rest))
    return found


def reduce_rows(
    values: NDArray[np.float64], block: RowBlock, how: Reduction
) -> NDArray[np.float64]:
    """[n] the sum or mean over the unmasked tokens of each row; 0 for a row without any.

    Args:
        values: [N] as :func:`evaluate` gives them; what is masked is not read.
        block: whose ``response_mask`` counts.
        how: ``sum`` or ``mean``.
    """
    mask = block.tokens[MASK]
    row = np.repeat(np.arange(len(mask)), mask.lengths)
    live = mask.values.astype(bool)
    total: NDArray[np.float64] = np.bincount(
        row[live], weights=values[live], minlength=len(mask)
    ).astype(np.float64)
    if how == "sum":
        return total
    count = np.bincount(row[live], minlength=len(mask))
    found: NDArray[np.float64] = total / np.maximum(count, 1)
    return found


def names_in(expression: Expression, kind: Literal["token", "sample"]) -> set[str]:
    """The columns of a kind that an expression reads."""
    if expression[0] in ("token", "sample", "number"):
        return {expression[1]} if expression[0] == kind else set()
    return set().union(*(names_in(part, kind) for part in expression[1:]))
