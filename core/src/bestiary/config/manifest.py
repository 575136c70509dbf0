"""What made a run: enough to repeat it, and nothing that must stay secret."""

import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import distributions
from pathlib import Path
from typing import TYPE_CHECKING, Any

import bestiary
from bestiary.config.catalog import Catalog
from bestiary.config.run_dir import MANIFEST, Claim, write_json
from bestiary.config.schema import MANY
from bestiary.config.secrets import hide, hide_word
from bestiary.errors import UserError

if TYPE_CHECKING:
    from bestiary.config.plan import RunPlan
    from bestiary.plugins.manager import PluginSet


def manifest(
    plan: "RunPlan", plugins: "PluginSet", claim: Claim, argv: Sequence[str]
) -> dict[str, Any]:
    """The record of a run's origin, as JSON values.

    The environment is not recorded, and values of keys that look like secrets are hidden.
    """
    return {
        "bestiary": bestiary.__version__,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "attempt": claim.attempt,
        "resumed_from": None if claim.resumed_from is None else str(claim.resumed_from),
        "changed": list(claim.changed),
        "argv": [hide_word(word) for word in argv],
        "seed": plan.run.seed,
        "choices": {**plan.choices, MANY: list(plan.trackers)},
        "owners": _owners(plan, plugins),
        "config": hide(plan.to_json()),
        "plugins": plugins.fingerprint(),
        "git": git_state(Path.cwd()),
        "python": platform.python_version(),
        "executable": sys.executable,
        "platform": platform.platform(),
        "machine": {"cpus": os.cpu_count(), "host": platform.node()},
        "packages": packages(),
    }


def write_manifest(folder: Path, data: Mapping[str, Any], attempt: int = 1) -> None:
    """Write ``manifest.json``; that of an earlier attempt is kept under its number."""
    write_json(folder / MANIFEST, data, attempt)


def packages() -> dict[str, str]:
    """Versions of all installed distributions."""
    found = {d.name: d.version for d in distributions() if d.name}
    return dict(sorted(found.items(), key=lambda item: item[0].lower()))


def git_state(folder: Path) -> dict[str, Any] | None:
    """Commit and whether files differ from it; None outside of a repository."""
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return None
    status = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return {"commit": commit, "dirty": status is None or bool(status)}


def _git(folder: Path, *words: str) -> str | None:
    try:
        done = subprocess.run(  # noqa: S603 - fixed words
            ["git", *words],  # noqa: S607 - the user's own git
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _owners(plan: "RunPlan", plugins: "PluginSet") -> dict[str, str]:
    catalog = Catalog(plugins)
    found = {g: str(catalog.choice(g, n).owner) for g, n in plan.choices.items() if g != "model"}
    for name in plan.trackers:
        found[f"{MANY}.{name}"] = str(catalog.choice(MANY, name).owner)
    return found


@contextmanager
def gone_named(run_dir: Path, plugins: "PluginSet") -> Iterator[None]:
    """Add to an error which distributions a run was made with that are not active now."""
    try:
        yield
    except UserError as error:
        gone = _gone(run_dir, plugins)
        if gone:
            error.hint = f"the run was made with {', '.join(gone)}; install or unblock it"
        raise


def _gone(run_dir: Path, plugins: "PluginSet") -> list[str]:
    try:
        made_with = json.loads((run_dir / MANIFEST).read_text())["plugins"]["plugins"]
        before = {p["distribution"]: p["version"] for p in made_with}
    except (OSError, ValueError, KeyError, TypeError):  # the error itself says what is wrong
        return []
    now = {p["distribution"] for p in plugins.fingerprint()["plugins"]}
    return [f"{name} {version}" for name, version in sorted(before.items()) if name not in now]
