"""The responses of a row: a text to imitate or a pair, alone or at the end of conversations."""

from collections.abc import Mapping, Sequence
from typing import Any

from bestiary.data.values import RowError, get, message_of, text_of

_HUMAN, _ASSISTANT = "\n\nHuman:", "\n\nAssistant:"
_ROLES = {_HUMAN: "user", _ASSISTANT: "assistant"}

Prompt = str | list[dict[str, str]]


def last_answers(
    row: Mapping[str, Any], target: str, rejected: str
) -> tuple[str | None, str | None]:
    """(target, rejected): each a text, or the last message of a conversation.

    Args:
        row: of the file.
        target: name of its column; empty is None.
        rejected: likewise.

    Raises:
        RowError: for an empty text, or a conversation that does not end with the assistant.
    """
    return _last_answer("target", row, target), _last_answer("rejected", row, rejected)


def _last_answer(what: str, row: Mapping[str, Any], column: str) -> str | None:
    if not column:
        return None
    value = get(row, column)
    if isinstance(value, Sequence) and not isinstance(value, str) and value:
        last = message_of(len(value) - 1, value[-1])
        if last["role"] != "assistant":
            raise RowError(f"{what} ends with a message of {last['role']!r}, not of the assistant")
        value = last["content"]
    return text_of(what, value)


def split_conversations(
    row: Mapping[str, Any], target: str, rejected: str, *, chat: bool
) -> tuple[Prompt, str | None, str | None]:
    """(what comes before the last answer, target, rejected) of columns with whole conversations.

    A conversation is a list of messages, or a transcript with the turns ``Human:`` and
    ``Assistant:`` as Bai et al. 2022 (arXiv:2204.05862) published theirs.

    Args:
        row: of the file.
        target: name of its column.
        rejected: likewise; empty is None.
        chat: make messages of a transcript; else its text stays as it is.

    Raises:
        RowError: if there is no last answer or nothing before it, or the two differ earlier.
    """
    prompt, text = _split("target", get(row, target), chat=chat)
    if not rejected:
        return prompt, text, None
    other, worse = _split("rejected", get(row, rejected), chat=chat)
    if other != prompt:
        raise RowError("target and rejected differ before their last answer")
    return prompt, text, worse


def _split(what: str, value: Any, *, chat: bool) -> tuple[Prompt, str]:  # noqa: ANN401 - JSON
    if isinstance(value, str):
        start, found, answer = value.rpartition(_ASSISTANT)
        if not found or _HUMAN in answer:
            raise RowError(f"{what} does not end with a turn {_ASSISTANT.strip()!r}")
        if chat:
            return _turns(what, start), text_of(what, answer.strip())
        return start + found, text_of(what, answer)
    if not isinstance(value, Sequence) or len(value) < 2:
        raise RowError(f"{what}: a transcript or at least two messages are wanted")
    messages = [message_of(i, m) for i, m in enumerate(value)]
    last = messages.pop()
    if last["role"] != "assistant":
        raise RowError(f"{what} ends with a message of {last['role']!r}, not of the assistant")
    return messages, text_of(what, last["content"])


def _turns(what: str, text: str) -> list[dict[str, str]]:
    """The turns of a transcript as messages."""
    messages: list[dict[str, str]] = []
    rest = "\n\n" + text.lstrip()
    while rest:
        head = next((h for h in _ROLES if rest.startswith(h)), None)
        if head is None:
            raise RowError(f"{what} does not begin with {_HUMAN.strip()!r}")
        rest = rest[len(head) :]
        ends = [place for h in _ROLES if (place := rest.find(h)) >= 0]
        end = min(ends, default=len(rest))
        messages.append({"role": _ROLES[head], "content": rest[:end].strip()})
        rest = rest[end:]
    return messages
