"""One row of a file → one problem: types are checked and made uniform here, when data are read."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from bestiary.data.conversations import last_answers, split_conversations
from bestiary.data.values import (
    RowError,
    flag,
    get,
    json_value,
    message_of,
    readable,
    what_is,
)
from bestiary.errors import DataError
from bestiary.protocols import Problem

ANSWERS = "answers"
"""Key in ``Problem.extra``: the list of all accepted answers, where a row has several."""

SAFE = ("chosen_safe", "rejected_safe")
"""Keys in ``Problem.extra``: whether the texts of a pair are safe, where a file says so."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Columns:
    """Which column of a file holds what; an empty name is a column that is not there.

    Without ``prompt`` the prompt is what comes before the last answer in ``target`` (and
    ``rejected``), which are then whole conversations. ``choice`` holds which of the two is
    preferred, ``safe`` names the columns that say whether they are safe.
    """

    prompt: str = "prompt"
    answer: str = "answer"
    target: str = ""
    rejected: str = ""
    choice: str = ""
    safe: tuple[str, ...] = ()
    uid: str = ""
    extra: tuple[str, ...] = ()


def to_problem(row: Mapping[str, Any], columns: Columns, *, chat: bool, system: str) -> Problem:
    """Turn a row into a problem.

    Args:
        row: values as the file has them.
        columns: where to look.
        chat: make a message of the user of a plain prompt.
        system: put a system message before it (makes it a chat).

    Raises:
        RowError: for a missing column or a value of the wrong type.
    """
    target, rejected = columns.target, columns.rejected
    if columns.prompt:
        texts = last_answers(row, target, rejected)
        prompt = _prompt(get(row, columns.prompt), chat=chat, system=system)
    else:
        as_chat = chat or bool(system)
        start, *both = split_conversations(row, target, rejected, chat=as_chat)
        texts = (both[0], both[1])
        prompt = _prompt(start, chat=chat, system=system)
    extra = {name: json_value(name, get(row, name)) for name in columns.extra}
    answers = accepted_answers(get(row, columns.answer)) if columns.answer else ()
    if len(answers) > 1:
        extra[ANSWERS] = list(answers)
    safe = [flag(row, name) for name in columns.safe]
    if columns.choice and flag(row, columns.choice):
        texts, safe = texts[::-1], safe[::-1]
    if safe:
        extra |= dict(zip(SAFE, safe, strict=True))
    readable("prompt", *([prompt] if isinstance(prompt, str) else [m["content"] for m in prompt]))
    readable("answer", *answers)
    readable("target", *(text for text in texts if text is not None))
    uid = str(get(row, columns.uid)) if columns.uid else content_uid(prompt, *texts)
    readable("uid", uid)
    return Problem(
        uid=uid,
        prompt=prompt,
        answer=answers[0] if answers else "",
        target=texts[0],
        rejected=texts[1],
        extra=extra,
    )


def accepted_answers(value: Any) -> tuple[str, ...]:  # noqa: ANN401 - any JSON value
    """The accepted answers as texts: ``42``, ``"42"`` and ``["42", "42.0"]`` are all fine.

    Raises:
        RowError: for null, an empty text or list, NaN, or anything nested.
    """
    if isinstance(value, Sequence) and not isinstance(value, str):
        if not value:
            raise RowError("answer is an empty list")
        return tuple(dict.fromkeys(_answer_text(item) for item in value))
    return (_answer_text(value),)


def _answer_text(value: Any) -> str:  # noqa: ANN401 - any JSON value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float) and math.isfinite(value):
        return repr(value)
    if isinstance(value, str) and value.strip():
        return value.strip()
    raise RowError(f"answer is {what_is(value)}; a text, a number or a list of them is wanted")


def _prompt(
    value: Any,  # noqa: ANN401 - any JSON value
    *,
    chat: bool,
    system: str,
) -> str | tuple[Mapping[str, str], ...]:
    head = ({"role": "system", "content": system},) if system else ()
    if isinstance(value, str):
        if not value:
            raise RowError("prompt is an empty text")
        return (*head, {"role": "user", "content": value}) if chat or head else value
    if not isinstance(value, Sequence) or not value:
        raise RowError(f"prompt is {what_is(value)}; a text or a list of messages is wanted")
    messages = tuple(message_of(i, message) for i, message in enumerate(value))
    if messages[-1]["role"] == "assistant":
        raise RowError("the last message is the assistant's; the prompt must end before it")
    return messages if messages[0]["role"] == "system" else (*head, *messages)


def content_uid(
    prompt: str | Sequence[Mapping[str, str]],
    target: str | None = None,
    rejected: str | None = None,
) -> str:
    """16 hex digits of the content: the uid of rows that bring none.

    Of the prompt alone, and for a pair of prompt and both texts: data of preferences have several
    pairs of one prompt.
    """
    plain: Any = prompt if isinstance(prompt, str) else [dict(message) for message in prompt]
    if rejected is not None:
        plain = [plain, target, rejected]
    text = json.dumps(plain, sort_keys=True, ensure_ascii=True)
    return blake2b(text.encode(), digest_size=8).hexdigest()


def to_problems(
    rows: Sequence[Mapping[str, Any]],
    columns: Columns,
    *,
    where: str,
    chat: bool = False,
    system: str = "",
    drop_bad: bool = False,
) -> tuple[list[Problem], list[tuple[int, str]]]:
    """All rows of a file as problems.

    A row that repeats an earlier one is left out; without uids, two answers to one prompt are an
    error of the second row, and two pairs of one prompt are two problems.

    Args:
        rows: of the file.
        columns: where to look.
        where: name of the file, for messages.
        chat: as in :func:`to_problem`.
        system: as in :func:`to_problem`.
        drop_bad: leave rows with errors out instead of refusing the file.

    Returns:
        (problems, [(index, reason)] of the rows that were left out).

    Raises:
        DataError: naming the rows that are at fault, or when none is left.
    """
    problems: dict[str, Problem] = {}
    left_out: list[tuple[int, str]] = []
    bad: list[tuple[int, str]] = []
    for index, row in enumerate(rows):
        try:
            problem = to_problem(row, columns, chat=chat, system=system)
            earlier = problems.setdefault(problem.uid, problem)
            if earlier is not problem and earlier != problem:
                raise RowError(
                    f"an earlier row has the same {'uid' if columns.uid else 'prompt'} "
                    f"({problem.uid}) and other values"
                )
            if earlier is not problem:
                left_out.append((index, "repeats an earlier row"))
        except RowError as error:
            bad.append((index, str(error)))
    if bad and not drop_bad:
        shown = "; ".join(f"row {index}: {reason}" for index, reason in bad[:5])
        more = f"; and {len(bad) - 5} more" if len(bad) > 5 else ""
        raise DataError(
            f"{where}: {len(bad)} of {len(rows)} rows cannot be used: {shown}{more}",
            hint=_next_step(bad, columns),
        )
    if not problems:
        index, reason = bad[0]
        raise DataError(
            f"{where}: no row can be used; row {index}: {reason}", hint=_next_step(bad, columns)
        )
    return list(problems.values()), sorted(left_out + bad)


def _next_step(bad: Sequence[tuple[int, str]], columns: Columns) -> str:
    """What to set for a column that is elsewhere; else to mend the rows."""
    for option in ("prompt", "answer", "target", "rejected", "choice", "uid"):
        name = getattr(columns, option)
        if name and all(reason.startswith(f"there is no column {name!r}") for _, reason in bad):
            return f"name the column that is meant: task.{option}=COLUMN"
    return "mend them, or set task.bad_rows=drop to leave them out"
