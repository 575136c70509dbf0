"""Prompts for the library: lists of texts or of problems, and the tasks that are installed."""

from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np

from bestiary.batch import Batch, as_column, row_key
from bestiary.batch.derive import local
from bestiary.batch.ragged import Ragged
from bestiary.data.order import EpochOrder
from bestiary.data.rows import content_uid
from bestiary.data.source import PromptSource
from bestiary.errors import DataError, boundary
from bestiary.library.workbench import Workbench, workbench
from bestiary.models.tokenizer import Tokenizer
from bestiary.protocols import ComponentRef, Problem

Prompts = Sequence[str] | Sequence[Problem]
"""What generation takes: texts, chat messages in problems, or problems of a task."""


def load_prompts(
    task: str,
    *,
    batch_size: int,
    steps: int,
    split: Literal["train", "eval"] = "train",
    shuffle: bool = True,
    **options: object,
) -> Iterator[list[Problem]]:
    """The problems of an installed task, batch after batch.

    Each pass over the split has an order of its own, which depends on the seed of ``setup``.

    Args:
        task: name of the task, as in ``bestiary plugins``.
        batch_size: problems at once.
        steps: batches.
        split: ``train`` or the held-out ``eval``.
        shuffle: False keeps the order of the task.
        options: of the task.

    Raises:
        UserError: if the task is not installed, has no such option or no problems.
    """
    bench = workbench()
    ref = ComponentRef("task", task, options)
    with boundary(bench.components.owner(ref), "reading the task's problems", DataError):
        problems = list(bench.components.build(ref).problems(split))
    if not problems:
        raise DataError(f"the split {split!r} of task {task!r} is empty")
    order = EpochOrder(len(problems), bench.seed, shuffle=shuffle)
    return _batches(problems, batch_size, steps, order)


def _batches(
    problems: Sequence[Problem], size: int, steps: int, order: EpochOrder
) -> Iterator[list[Problem]]:
    for _ in range(steps):
        yield [problems[i] for i in order.next(size)]


def as_problems(prompts: Prompts | str) -> list[Problem]:
    """Texts as problems; equal ones are kept apart.

    Raises:
        DataError: for no prompts, or something that is neither text nor problem.
    """
    given = [prompts] if isinstance(prompts, str) else list(prompts)
    if not given:
        raise DataError("no prompts were given", hint="pass a list of texts")
    seen: dict[str, int] = {}
    found = []
    for place, prompt in enumerate(given):
        if isinstance(prompt, str):
            prompt = Problem(uid=content_uid(prompt), prompt=prompt)
        if not isinstance(prompt, Problem):
            raise DataError(
                f"prompt {place} is a {type(prompt).__name__}; a text or a Problem is wanted"
            )
        number = seen[prompt.uid] = seen.get(prompt.uid, 0) + 1
        if number > 1:
            named = f"{prompt.uid}/{number}"
            prompt = Problem(
                named, prompt.prompt, prompt.answer, prompt.target, prompt.extra, prompt.rejected
            )
        found.append(prompt)
    return found


def prompt_batch(prompts: Prompts | str, tokenizer: Tokenizer, bench: Workbench) -> Batch:
    """Prompts as a batch; each hand-out of a prompt has random streams of its own."""
    rows = PromptSource(as_problems(prompts), tokenizer).peek(np.arange(_count(prompts)))
    draws = np.array([bench.draw(str(uid)) for uid in rows["uid"]], dtype=np.int64)
    groups = [f"{uid}#{draw}" for uid, draw in zip(rows["uid"], draws, strict=True)]
    keys = np.array([row_key("prompt", group) for group in groups], dtype=np.uint64)
    return rows.with_columns(draw=draws, group_uid=as_column(groups), row_key=keys)


def _count(prompts: Prompts | str) -> int:
    return 1 if isinstance(prompts, str) else len(prompts)


def answered(prompts: Batch, ids: Sequence[Sequence[int]], each: int) -> Batch:
    """Rows of prompts with given responses, ``each`` for a prompt, in order."""
    rows = prompts.take(np.repeat(np.arange(len(prompts)), each))
    column = Ragged.from_rows([list(row) for row in ids], dtype=np.int64)
    lengths = column.lengths
    index = np.tile(np.arange(each, dtype=np.int64), len(prompts))
    keys = [
        row_key(group, "given", int(j)) for group, j in zip(rows["group_uid"], index, strict=True)
    ]
    every = np.ones(len(rows), dtype=bool)
    rows = rows.with_columns(
        row_key=np.array(keys, dtype=np.uint64),
        sample_index=index,
        tag=as_column(["sample"] * len(rows)),
        trainable=every,
        response_len=lengths,
        loss_tokens=lengths,
        truncated=~every,
    )
    ones = Ragged(np.ones(len(column.values), dtype=bool), column.offsets)
    prompt_ids = rows.tokens("prompt_ids")
    return local(rows, prompt_ids=prompt_ids, response_ids=column, response_mask=ones)
