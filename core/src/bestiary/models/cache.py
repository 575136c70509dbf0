"""The user's cache folder: entries named by what they were made from, complete or absent."""

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any

MARKER = "bestiary_entry.json"
"""Written last into each entry: the key that it was made from."""


def cache_root() -> Path:
    """``$XDG_CACHE_HOME/bestiary``, or ``~/.cache/bestiary``."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG rules: a relative value is to be ignored.
    base = Path(home) if os.path.isabs(home) else Path.home() / ".cache"
    return base / "bestiary"


def content_hash(path: Path) -> str:
    """32 hex digits of a file's bytes."""
    digest = blake2b(digest_size=16)
    with path.open("rb") as stream:
        while chunk := stream.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def key_hash(key: Mapping[str, Any]) -> str:
    """16 hex digits of a key of JSON values, whatever the order of its names."""
    text = json.dumps(key, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return blake2b(text.encode(), digest_size=8).hexdigest()


def cached(
    kind: str,
    key: Mapping[str, Any],
    build: Callable[[Path], None],
    *,
    root: Path | None = None,
) -> Path:
    """The folder made from ``key``, built now if it is not there yet.

    ``build`` fills a folder aside; the marker is written last and the folder renamed into place,
    so that an entry is complete or absent. Of several processes that want the same entry at once,
    one builds and the others wait for it.

    Args:
        kind: folder of the cache and first part of the entry's name.
        key: JSON values that decide the content: options, versions, hashes of inputs.
        build: fills the empty folder that it is given.
        root: the cache; the user's own by default.

    Returns:
        The folder of the entry. Its content belongs to the cache: read only.
    """
    shelf = (root or cache_root()) / kind
    entry = shelf / f"{kind}-{key_hash(key)}"
    if (entry / MARKER).is_file():
        return entry
    shelf.mkdir(parents=True, exist_ok=True)
    with _lock(shelf / f".{entry.name}.lock"):
        if not (entry / MARKER).is_file():
            _build(entry, key, build)
    return entry


def _build(entry: Path, key: Mapping[str, Any], build: Callable[[Path], None]) -> None:
    aside = Path(tempfile.mkdtemp(prefix=f".{entry.name}.", dir=entry.parent))
    try:
        build(aside)
        for path in aside.rglob("*"):
            if path.is_file():
                _sync(path)
        marker = aside / MARKER
        marker.write_text(json.dumps(dict(key), sort_keys=True, indent=1) + "\n", encoding="utf-8")
        _sync(marker)
        if entry.exists() and not (entry / MARKER).is_file():
            shutil.rmtree(entry)  # what somebody left without a marker is not an entry
        try:
            aside.rename(entry)
        except OSError:
            # Where locks do not work (some network file systems) another builder may have won.
            if not (entry / MARKER).is_file():
                raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _sync(path: Path) -> None:
    with path.open("rb") as stream:
        os.fsync(stream.fileno())


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Hold an advisory lock; released by the system when the process dies."""
    import fcntl

    with path.open("w") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX)
        except OSError:
            yield  # no locks here: builders may work twice, the rename still lets one win
            return
        yield
