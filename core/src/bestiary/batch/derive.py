"""New rows out of a batch: preference pairs, and prompts that go on from a response."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bestiary.batch.batch import Batch, Column, Ready, as_column, row_key
from bestiary.batch.ragged import Ragged, RowBlock


def local(batch: Batch, **tokens: Ragged) -> Batch:
    """The sample columns of a batch with these token columns, held in this process."""
    block = Ready(RowBlock(tokens))
    column = Column.of((block,), (len(batch),))
    return Batch(batch.sample_columns(), dict.fromkeys(tokens, column))


def token_column(batch: Batch, **tokens: Ragged) -> Batch:
    """Token columns made on the controller, to be joined to the batch.

    Args:
        batch: whose rows they belong to.
        tokens: by name, one row for each row of the batch.

    Raises:
        ValueError: for a column with another number of rows.
    """
    for name, column in tokens.items():
        if len(column) != len(batch):
            raise ValueError(
                f"token_column: {name!r} has {len(column)} rows, the batch {len(batch)}"
            )
    held = Column.of((Ready(RowBlock(tokens)),), (len(batch),))
    return Batch({"row_key": batch["row_key"]}, dict.fromkeys(tokens, held))


def preference_pairs(prompts: Batch) -> Batch:
    """Two rows for each prompt, the chosen response and then the rejected one.

    The rows of a pair are a group. Sample columns of the result, besides those of the prompts:
    ``preferred`` (1 or 0), ``tag`` (``chosen`` or ``rejected``) and, where every problem has
    safety labels (``extra.chosen_safe`` and ``extra.rejected_safe``), ``unsafe`` (+1 unsafe, −1
    safe).

    Args:
        prompts: with the token columns ``target_ids`` and ``rejected_ids``.

    Raises:
        ValueError: if the prompts have no pairs.
    """
    for name in ("target_ids", "rejected_ids"):
        if name not in prompts.columns:
            raise ValueError(
                f"preference pairs need the token column {name!r}; the task's problems must have "
                "a target and a rejected text"
            )
    n = len(prompts)
    order = np.repeat(np.arange(n), 2)
    chosen = np.tile(np.array([True, False]), n)
    both = Ragged.concat([prompts.tokens("target_ids"), prompts.tokens("rejected_ids")])
    responses = both.take(order + np.where(chosen, 0, n))
    rows = prompts.take(order)
    tags = ["chosen" if c else "rejected" for c in chosen]
    groups = rows["group_uid"]
    labels = _unsafe(rows["extra"], chosen)
    every = np.ones(2 * n, dtype=bool)
    rows = rows.with_columns(
        row_key=np.array(
            [row_key(g, t) for g, t in zip(groups, tags, strict=True)], dtype=np.uint64
        ),
        tag=as_column(tags),
        preferred=chosen.astype(np.float64),
        response_len=responses.lengths,
        loss_tokens=responses.lengths,
        trainable=every,
        valid=every,
        **({} if labels is None else {"unsafe": labels}),
    )
    return local(rows, prompt_ids=rows.tokens("prompt_ids"), response_ids=responses)


def _unsafe(extras: NDArray[Any], chosen: NDArray[np.bool_]) -> Sequence[float] | None:
    keys = ["chosen_safe" if c else "rejected_safe" for c in chosen]
    if any(key not in extra for extra, key in zip(extras, keys, strict=True)):
        return None
    return [-1.0 if extra[key] else 1.0 for extra, key in zip(extras, keys, strict=True)]


def prefixes(batch: Batch, cuts: Sequence[int] | NDArray[np.int64]) -> Batch:
    """Prompts that go on from a response: the prompt with its first ``cuts[i]`` response tokens.

    For trees of rollouts and Monte-Carlo values. Each row becomes a group of its own whose
    ``parent_uid`` is the group that it came from, with a uid (and so random streams) of its own.

    Args:
        batch: rows with ``prompt_ids`` and ``response_ids``.
        cuts: [B] tokens of the response to keep, 0 … response_len.

    Raises:
        ValueError: for a cut outside of its response.
    """
    keep = np.asarray(cuts, dtype=np.int64)
    responses = batch.tokens("response_ids")
    if len(keep) != len(batch) or (keep < 0).any() or (keep > responses.lengths).any():
        raise ValueError("prefixes: one cut within its response is needed for each row")
    prompts = batch.tokens("prompt_ids")
    ids = [np.concatenate([prompts.row(i), responses.row(i)[: keep[i]]]) for i in range(len(batch))]
    table = batch.sample_columns()
    parents = table["group_uid"]
    names = [
        f"{parents[i]}/{table['tag'][i]}{table['sample_index'][i]}@{keep[i]}"
        for i in range(len(batch))
    ]
    if len(set(names)) < len(names):  # the same row cut twice at one place
        names = [f"{name}~{i}" for i, name in enumerate(names)]
    longer = Ragged.from_rows(ids, dtype=np.int64)
    kept = {name: table[name] for name in _PROMPT if name in table}
    rows = Batch(
        {
            **kept,
            "row_key": np.array([row_key("prompt", name) for name in names], dtype=np.uint64),
            "uid": as_column(names),
            "group_uid": as_column(names),
            "parent_uid": parents,
            "draw": np.zeros(len(batch), dtype=np.int64),
            "prompt_len": longer.lengths,
        }
    )
    return local(rows, prompt_ids=longer)


_PROMPT = ("prompt", "answer", "extra")
"""Sample columns of a prompt that its continuations keep, for their scorers."""
