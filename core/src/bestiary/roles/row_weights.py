"""The weight of each row's tokens in an update's objective, from global counts."""

import numpy as np
from numpy.typing import NDArray

from bestiary.batch import Batch
from bestiary.protocols import WeightMode

Numbers = NDArray[np.float64]


def row_weights(
    loss_tokens: NDArray[np.int64],
    mode: WeightMode,
    *,
    valid: NDArray[np.bool_] | None = None,
    sample_weight: Numbers | None = None,
    length_norm: float | None = None,
) -> Numbers:
    """Weights w_i so that the loss is Σ_i w_i Σ_t ℓ[i, t] over the rows of one optimizer step.

    With N tokens and S sequences that are valid and have a live token, and n_i tokens in row i:
    token-mean 1/N, token-sum 1, seq-mean-token-sum 1/S, seq-mean-token-mean 1/(S·n_i),
    seq-mean-token-sum-norm 1/(S·L). They are the same in every micro-batch and on every rank, so
    splitting changes nothing. ``sample_weight`` multiplies the numerator only.

    Args:
        loss_tokens: [B] tokens that carry loss in each row.
        mode: the way of averaging.
        valid: [B] bool; invalid rows get 0 and leave N and S.
        sample_weight: [B] factors.
        length_norm: L, required by seq-mean-token-sum-norm.

    Returns:
        [B] float64; 0 for invalid rows and rows without tokens.

    Raises:
        ValueError: for an unknown mode or a missing L.
    """
    tokens = np.asarray(loss_tokens, dtype=np.float64)
    live = tokens > 0
    if valid is not None:
        live &= np.asarray(valid, dtype=bool)
    total, sequences = tokens[live].sum(), float(live.sum())
    weights = np.zeros(len(tokens))
    if sequences == 0:
        return weights
    if mode == "token-mean":
        weights[live] = 1.0 / total
    elif mode == "token-sum":
        weights[live] = 1.0
    elif mode == "seq-mean-token-sum":
        weights[live] = 1.0 / sequences
    elif mode == "seq-mean-token-mean":
        weights[live] = 1.0 / (sequences * tokens[live])
    elif mode == "seq-mean-token-sum-norm":
        if not length_norm or length_norm <= 0:
            raise ValueError(f"weights={mode} needs a length_norm above 0, got {length_norm}")
        weights[live] = 1.0 / (sequences * length_norm)
    else:
        raise ValueError(f"unknown weights mode {mode!r}")
    if sample_weight is not None:
        weights *= np.asarray(sample_weight, dtype=np.float64)
    return weights


def valid_rows(batch: Batch) -> NDArray[np.bool_]:
    """[B] True on rows that every scorer has scored: ``valid`` and each ``valid_<scorer>``."""
    valid = np.ones(len(batch), dtype=bool)
    for name in batch.names():
        if name == "valid" or name.startswith("valid_"):
            valid &= batch[name].astype(bool)
    return valid
