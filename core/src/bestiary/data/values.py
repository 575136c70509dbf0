"""Values of a row, checked: each is of its type, or an error that says what it is instead."""

import json
from collections.abc import Mapping
from typing import Any


class RowError(ValueError):
    """A row that cannot become a problem; its index is added by the caller."""


def get(row: Mapping[str, Any], name: str) -> Any:  # noqa: ANN401 - any JSON value
    """The value of a column that must be there."""
    if name not in row:
        raise RowError(f"there is no column {name!r}; there are: {', '.join(map(str, row))}")
    return row[name]


def json_value(name: str, value: Any) -> Any:  # noqa: ANN401 - any JSON value
    """A value that JSON can hold, as JSON holds it."""
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise RowError(f"column {name!r} is no JSON value: {error}") from error


def what_is(value: Any) -> str:  # noqa: ANN401 - any JSON value
    """Type and beginning of a value, for messages."""
    if value is None:
        return "null"
    shown = repr(value)
    return f"{type(value).__name__} {shown if len(shown) <= 40 else shown[:37] + '...'}"


def text_of(what: str, value: Any) -> str:  # noqa: ANN401 - any JSON value
    """A text that is not empty."""
    if not isinstance(value, str) or not value:
        raise RowError(f"{what} is {what_is(value)}, a text is wanted")
    return value


def readable(what: str, *texts: str) -> None:
    """Refuse text that is no Unicode text: half a character, as JSON can hold it.

    Raises:
        RowError: naming the code and its place.
    """
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            code = f"\\u{ord(text[error.start]):04x}"
            raise RowError(
                f"{what} holds half a character ({code} at {error.start}), which has no meaning"
            ) from None


def flag(row: Mapping[str, Any], name: str) -> bool:
    """A column with true or false, or 0 or 1."""
    value = get(row, name)
    if value in ("0", "1"):
        value = int(value)
    if not isinstance(value, (bool, int)) or value not in (0, 1):
        raise RowError(f"column {name!r} is {what_is(value)}; true, false, 0 or 1 is wanted")
    return bool(value)


def message_of(place: int, value: Any) -> dict[str, str]:  # noqa: ANN401 - any JSON value
    """One message of a conversation."""
    if not isinstance(value, Mapping):
        raise RowError(f"message {place} is {what_is(value)}; an object is wanted")
    for name in ("role", "content"):
        found = value.get(name)
        if not isinstance(found, str):
            raise RowError(f"message {place}: {name} is {what_is(found)}, a text is wanted")
    return {"role": value["role"], "content": value["content"]}
