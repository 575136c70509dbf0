"""What a set of plugins is, in JSON values, so that two processes can compare theirs."""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha256
from importlib.machinery import NamespaceLoader
from importlib.util import find_spec
from pathlib import Path
from socket import gethostname
from typing import Any

from bestiary.errors import PluginError

_LARGE_BYTES = 4 << 20
"""A larger file (weights, data) counts with its name and size only, to stay cheap."""


def content_hash(modules: Iterable[str]) -> str:
    """A hash over the files of the packages that hold some modules; nothing is imported.

    The package of a module is its outermost one that is not a namespace. Byte code and hidden
    files do not count. Paths are relative, so that two hosts with equal files agree.
    """
    digest = sha256()
    for name, path in sorted({root for module in modules for root in _roots(module)}):
        files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if _counts(p, path))
        for file in files:
            size = file.stat().st_size
            inside = file.relative_to(path).as_posix() if file != path else file.name
            digest.update(f"{name}\0{inside}\0{size}\0".encode())
            if size <= _LARGE_BYTES:
                digest.update(sha256(file.read_bytes()).digest())
    return digest.hexdigest()[:32]


def summarise(api: str, plugins: list[dict[str, Any]]) -> dict[str, Any]:
    """The fingerprint of plugins, with a digest over all of it."""
    body: dict[str, Any] = {"api": api, "plugins": plugins}
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return {**body, "digest": sha256(text.encode()).hexdigest()[:32]}


def differences(wanted: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    """What differs between two fingerprints, a line each; empty when they are equal.

    Args:
        wanted: of the driver, or of the run that wrote a checkpoint.
        found: of this process.
    """
    if wanted == found:
        return []
    lines = []
    if wanted["api"] != found["api"]:
        lines.append(f"hooks: version {wanted['api']} wanted, {found['api']} found")
    left, right = _by_name(wanted), _by_name(found)
    for name in sorted({*left, *right}):
        lines.extend(f"{name}: {what}" for what in _differ(left.get(name), right.get(name)))
    return lines or ["the fingerprints have different digests"]


def check_fingerprint(wanted: Mapping[str, Any], found: Mapping[str, Any], where: str = "") -> None:
    """Stop where two processes have different plugins.

    Args:
        wanted: the fingerprint of the driver.
        found: the fingerprint of another process.
        where: which one; by default this process and its host.

    Raises:
        PluginError: naming the process and each difference.
    """
    lines = differences(wanted, found)
    if lines:
        where = where or f"process {os.getpid()} on host {gethostname()}"
        raise PluginError(
            f"{where} has other plugins than the driver: " + "; ".join(lines),
            hint="install the same distributions there, or block those that differ",
        )


def _by_name(fingerprint: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    return {f"{p['plugin']} ({p['distribution']})": p for p in fingerprint["plugins"]}


def _differ(wanted: Mapping[str, Any] | None, found: Mapping[str, Any] | None) -> Iterator[str]:
    if wanted is None or found is None:
        yield "not wanted and loaded" if wanted is None else "wanted and not loaded"
        return
    if wanted["version"] != found["version"]:
        yield f"version {wanted['version']} wanted, {found['version']} found"
    ours, theirs = set(wanted["components"]), set(found["components"])
    if ours - theirs:
        yield f"lacks {', '.join(sorted(ours - theirs))}"
    if theirs - ours:
        yield f"has {', '.join(sorted(theirs - ours))} besides"
    if wanted["content"] != found["content"]:
        yield "its files have other contents"


def _roots(module: str) -> Iterator[tuple[str, Path]]:
    """(package, folder or file) that hold a module."""
    parts = module.split(".")
    for end in range(1, len(parts) + 1):
        name = ".".join(parts[:end])
        try:
            spec = find_spec(name)
        except (ImportError, ValueError):
            return
        if spec is None:
            return
        namespace = spec.loader is None or isinstance(spec.loader, NamespaceLoader)
        if namespace and end < len(parts):
            continue
        for folder in spec.submodule_search_locations or ():
            yield name, Path(folder)
        if not spec.submodule_search_locations and spec.origin and Path(spec.origin).is_file():
            yield name, Path(spec.origin)
        return


def _counts(path: Path, root: Path) -> bool:
    inside = path.relative_to(root).parts
    hidden = any(part.startswith(".") or part == "__pycache__" for part in inside)
    return path.is_file() and not hidden and path.suffix not in (".pyc", ".pyo")
