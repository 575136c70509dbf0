"""The layout of a packed micro-batch: each prompt once, then the responses, by length.

The tokens of a micro-batch form one sequence of N: the distinct prompts end to end, then the
response tokens that are fed (all but the last of each row). Rows lie in blocks of similar length;
in a block of equal lengths every gather is a view.
"""

# Legend: N packed tokens, U distinct prompts, P prompt tokens, b rows, n fed response tokens of a
# row, M predicted tokens (all response tokens of all rows).

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bestiary.batch import Ragged, RowBlock
from bestiary.errors import DataError

_SIMILAR = 0.75
"""Rows of at least this share of a block's longest row join it."""

Index = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Stack:
    """Rows that lie end to end in the packed sequence, seen as [count, width].

    Args:
        start: first packed token.
        count: rows.
        width: tokens of the longest row.
        size: packed tokens of all rows.
        slot: [size] the place of each packed token in [count × width]; None if no row is padded.
    """

    start: int
    count: int
    width: int
    size: int
    slot: Tensor | None


@dataclass(frozen=True, slots=True)
class Block:
    """Response rows of similar length with what their tokens attend to.

    Args:
        rows: their fed tokens.
        width: prompt tokens of the longest prompt among them.
        prompt: [b] the number of each row's prompt.
        span: (first prompt, prompts, rows of each), if the rows are evenly grouped by
            neighbouring prompts.
        mask: [b or 1, 1, n, P + n] bool, True where a query sees a key.
    """

    rows: Stack
    width: int
    prompt: Tensor
    span: tuple[int, int, int] | None
    mask: Tensor


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """Who attends to whom in a packed sequence.

    Args:
        prompts: the distinct prompts.
        blocks: the responses.
        keep: keep scores for the backward pass; False recomputes them.
    """

    prompts: Stack
    blocks: tuple[Block, ...]
    keep: bool = True


@dataclass(frozen=True, slots=True)
class PackPlan:
    """A packed micro-batch.

    Args:
        input_ids: [1, N].
        position_ids: [1, N], counted in each row from its prompt's first token.
        attention: who attends to whom.
        first: [b'] the packed place of the last prompt token of each row with a response; the
            predictors of first tokens. Those of all other tokens are ``rest:``.
        rest: where the response tokens begin.
        targets: [M] the predicted tokens, first tokens before the others.
        place: [M] where each of them is in a [b × T] array.
        shape: (b, T).
    """

    input_ids: Tensor
    position_ids: Tensor
    attention: AttentionPlan
    first: Tensor
    rest: int
    targets: Tensor
    place: Tensor
    shape: tuple[int, int]


def check_rows(rows: RowBlock) -> None:
    """Refuse rows that no model can score: a response needs a token before it."""
    for name in ("prompt_ids", "response_ids"):
        if name not in rows.tokens:
            raise DataError(
                f"the training engine needs the column {name!r}; there are {sorted(rows.tokens)}"
            )
    empty = np.flatnonzero(rows.tokens["prompt_ids"].lengths == 0)
    if len(empty):
        raise DataError(
            f"row {empty[0]} has an empty prompt ({len(empty)} rows in all)",
            hint="start prompts with the tokenizer's beginning-of-text token",
        )


def pack(
    prompts: Ragged,
    responses: Ragged,
    device: str | torch.device = "cpu",
    *,
    keep: bool = True,
    similar: float = _SIMILAR,
) -> PackPlan:
    """Lay out rows for one packed forward pass.

    Args:
        prompts: a prompt for each row; equal ones are stored once.
        responses: a response for each row; it may be empty.
        device: where the index tensors go.
        keep: whether attention keeps its scores for the backward pass.
        similar: rows of at least this share of a block's longest row join it.
    """
    unique, of_row = _distinct(prompts)
    p_lens = unique.lengths
    lens = responses.lengths
    fed = np.maximum(lens - 1, 0)
    blocks = [
        part for block in _similar(fed, similar) for part in _by_prompt(block, of_row, p_lens)
    ]
    order = np.concatenate([*blocks, np.flatnonzero(fed == 0)]).astype(np.int64)
    start = int(p_lens.sum())
    ends = np.cumsum(p_lens)
    inputs = _drop_last(responses.take(order))
    position = np.concatenate(
        [_ramp(p_lens), _ramp(fed[order]) + np.repeat(p_lens[of_row[order]], fed[order])]
    )
    live = order[lens[order] > 0]
    width = int(lens.max(initial=0))
    rest_place = np.repeat(order * width + 1, fed[order]) + _ramp(fed[order])
    rest_target = responses.values[
        np.repeat(responses.offsets[order] + 1, fed[order]) + _ramp(fed[order])
    ]
    first_target = responses.values[responses.offsets[live]]

    def put(x: Index) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(x, dtype=np.int64)).to(device)

    made, at = [], start
    for rows in blocks:
        block = _block(rows, at, fed, of_row, p_lens, device)
        made.append(block)
        at += block.rows.size
    return PackPlan(
        input_ids=put(np.concatenate([unique.values, inputs]))[None],
        position_ids=put(position)[None],
        attention=AttentionPlan(_stack(p_lens, 0, device), tuple(made), keep),
        first=put(ends[of_row[live]] - 1),
        rest=start,
        targets=put(np.concatenate([first_target, rest_target])),
        place=put(np.concatenate([live * width, rest_place])),
        shape=(len(lens), width),
    )


def _distinct(prompts: Ragged) -> tuple[Ragged, Index]:
    """The distinct prompts by length, and the number of each row's prompt."""
    seen: dict[bytes, int] = {}
    first: list[int] = []
    of_row = np.empty(len(prompts), dtype=np.int64)
    for i in range(len(prompts)):
        key = prompts.row(i).tobytes()
        if key not in seen:
            seen[key] = len(first)
            first.append(i)
        of_row[i] = seen[key]
    by_length = np.argsort(prompts.lengths[first], kind="stable")
    rank = np.empty(len(first), dtype=np.int64)
    rank[by_length] = np.arange(len(first))
    return prompts.take(np.asarray(first)[by_length]), rank[of_row]


def _similar(fed: Index, similar: float) -> list[Index]:
    """Blocks of rows of similar length, longest first; rows that feed nothing are left out."""
    order = np.argsort(-fed, kind="stable")
    order = order[fed[order] > 0]
    blocks: list[Index] = []
    while len(order):
        long_enough = int((fed[order] >= similar * fed[order[0]]).sum())
        blocks.append(order[:long_enough])
        order = order[long_enough:]
    return blocks


def _by_prompt(rows: Index, of_row: Index, p_lens: Index) -> list[Index]:
    """Sort a block by prompt and cut it where prompts become much longer."""
    rows = rows[np.argsort(of_row[rows], kind="stable")]
    lens = p_lens[of_row[rows]]
    parts: list[Index] = []
    while len(rows):
        fit = int((lens <= 2 * lens[0] + 32).sum())
        parts.append(rows[:fit])
        rows, lens = rows[fit:], lens[fit:]
    return parts


def _ramp(lengths: Index) -> Index:
    """0, 1, …, for each length."""
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    return np.arange(total, dtype=np.int64) - np.repeat(ends - lengths, lengths)


def _drop_last(rows: Ragged) -> Index:
    keep = np.ones(len(rows.values), dtype=bool)
    keep[rows.offsets[1:][rows.lengths > 0] - 1] = False
    kept: Index = rows.values[keep]
    return kept


def _stack(lengths: Index, start: int, device: str | torch.device) -> Stack:
    width, size = int(lengths.max(initial=0)), int(lengths.sum())
    slot = None
    if size != width * len(lengths):
        slots = np.repeat(np.arange(len(lengths)) * width, lengths) + _ramp(lengths)
        slot = torch.from_numpy(slots).to(device)
    return Stack(start, len(lengths), width, size, slot)


def _block(
    rows: Index, start: int, fed: Index, of_row: Index, p_lens: Index, device: str | torch.device
) -> Block:
    prompt = of_row[rows]
    stack = _stack(fed[rows], start, device)
    lens = p_lens[prompt]
    width = int(lens.max())
    key = np.arange(width + stack.width)
    causal = key[None, :] - width <= np.arange(stack.width)[:, None]
    mask = torch.from_numpy(causal)[None, None]
    if lens.min() != width:
        visible = (key[None, :] >= width) | (key[None, :] < lens[:, None])
        mask = mask & torch.from_numpy(visible)[:, None, None, :]
    return Block(stack, width, torch.from_numpy(prompt).to(device), _span(prompt), mask.to(device))


def _span(prompt: Sequence[int] | Index) -> tuple[int, int, int] | None:
    """(first, count, rows of each) if sorted prompts are neighbours with equally many rows."""
    values, counts = np.unique(prompt, return_counts=True)
    neighbours = int(values[-1] - values[0]) == len(values) - 1
    if not neighbours or counts.min() != counts.max():
        return None
    return int(values[0]), len(values), int(counts[0])
