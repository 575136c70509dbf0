"""Values that no record may show."""

import re
from collections.abc import Mapping
from typing import Any

_SECRET = re.compile(
    r"(^|[_-])(token|api_?key|key|password|passwd|secret|credentials?)s?($|[_-])", re.IGNORECASE
)
_IN_WORD = re.compile(r"([\w.+-]*)=(.*)", re.DOTALL)
_IN_URL = re.compile(r"(\w+://)[^/@\s]+@")
HIDDEN = "***"


def is_secret(key: str) -> bool:
    """Whether a key looks like that of a secret: token, key, password and the like."""
    return bool(_SECRET.search(key.rpartition(".")[2]))


def hide(data: Any) -> Any:  # noqa: ANN401 - JSON values
    """JSON values with the values of secret keys, and credentials in addresses, hidden."""
    if isinstance(data, Mapping):
        return {k: HIDDEN if _hidden(k, v) else hide(v) for k, v in data.items()}
    if isinstance(data, list | tuple):
        return [hide_word(v) if isinstance(v, str) else hide(v) for v in data]
    if isinstance(data, str):
        return _IN_URL.sub(rf"\1{HIDDEN}@", data)
    return data


def _hidden(key: str, value: object) -> bool:
    """Numbers, as in ``max_tokens``, and empty texts are no secrets."""
    return is_secret(key) and isinstance(value, str) and value != ""


def hide_word(word: str) -> str:
    """A word of a command line, ``key=value``, with a secret value hidden."""
    found = _IN_WORD.fullmatch(word)
    if found and is_secret(found[1].lstrip("+")) and not found[2].replace(".", "").isdigit():
        return f"{found[1]}={HIDDEN}"
    return _IN_URL.sub(rf"\1{HIDDEN}@", word)
