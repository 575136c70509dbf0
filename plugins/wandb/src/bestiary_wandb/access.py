"""Whether a run can go online, and what of it must not: pure functions of the environment."""

import netrc
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

HIDDEN = "(hidden)"

_DEFAULT_SERVER = "https://api.wandb.ai"
_SECRET_WORDS = ("api_key", "apikey", "password", "passwd", "secret", "credential", "access_key")
_SECRET_ENDS = ("token", "auth")

ResolvedMode = Literal["online", "offline", "disabled"]


def resolve_mode(mode: str, environ: Mapping[str, str], home: Path) -> ResolvedMode:
    """The mode that a run gets without asking anybody for a key.

    Args:
        mode: an option: ``auto``, ``online``, ``offline`` or ``disabled``.
        environ: the environment; ``WANDB_MODE`` replaces ``auto``.
        home: where the netrc file is looked for.

    Raises:
        ValueError: for ``online`` without a key.
    """
    wanted = environ.get("WANDB_MODE", "auto") if mode == "auto" else mode
    if wanted in ("offline", "dryrun"):
        return "offline"
    if wanted == "disabled":
        return "disabled"
    if has_key(environ, home):
        return "online"
    if wanted == "online":
        raise ValueError(
            "wandb mode=online, but no key is known for "
            f"{server(environ)}: set WANDB_API_KEY, run `wandb login`, or use mode=offline"
        )
    return "offline"


def has_key(environ: Mapping[str, str], home: Path) -> bool:
    """Whether wandb can log in by itself."""
    if environ.get("WANDB_API_KEY") or environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    host = urlsplit(server(environ)).hostname or ""
    named = environ.get("NETRC")
    for path in [Path(named)] if named else [home / ".netrc", home / "_netrc"]:
        try:
            # default entries are for other services; a key for this host has to be spelt out
            if host in netrc.netrc(str(path)).hosts:
                return True
        except (OSError, netrc.NetrcParseError):
            continue
    return False


def server(environ: Mapping[str, str]) -> str:
    """The address of the W&B server."""
    return environ.get("WANDB_BASE_URL") or _DEFAULT_SERVER


def without_secrets(value: Any, key: str = "") -> Any:  # noqa: ANN401 - any JSON value
    """A copy in which the texts under keys that look like secrets are replaced."""
    if isinstance(value, Mapping):
        return {str(k): without_secrets(v, str(k)) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [without_secrets(item, key) for item in value]
    if isinstance(value, str) and value and _is_secret(key.lower()):
        return HIDDEN
    return value


def _is_secret(key: str) -> bool:
    return any(word in key for word in _SECRET_WORDS) or key.endswith(_SECRET_ENDS)
