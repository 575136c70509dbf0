"""``bestiary new KIND NAME``: a complete plugin distribution that installs, passes and trains."""

import argparse
import keyword
import re
import sys
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from string import Template

from bestiary.errors import ConfigError

KINDS = ("algorithm", "estimator", "loss", "sampler", "reward")
_REGISTRY = {"estimator": "advantage"}
_TRAIN = {
    "algorithm": "algorithm=$name",
    "estimator": "algorithm=grpo advantage=$name",
    "loss": "algorithm=grpo loss=$name",
    "sampler": "algorithm=grpo sampler=$name",
    "reward": "algorithm=grpo reward=$name",
}


def new(arguments: argparse.Namespace) -> int:
    """Write the distribution and say what to do next; returns the exit status."""
    from bestiary.plugins.manager import load_plugins

    kind, name = arguments.kind, arguments.name
    _check_name(name)
    registered = load_plugins().registry
    component = _REGISTRY.get(kind, kind)
    if name in registered.names(component):
        owner = registered.get(component, name).owner
        raise ConfigError(
            f"the name {name!r} is taken: {component}={name} is of {owner}",
            hint="choose another name, or block that plugin (--block-plugin)",
        )
    folder = Path(arguments.dir) / f"bestiary-{name.replace('_', '-')}"
    if folder.exists():
        raise ConfigError(f"{folder} exists", hint="choose another name or --dir")
    write(folder, kind, name)
    train = Template(_TRAIN[kind]).substitute(name=name)
    here = folder if folder.is_absolute() else f"./{folder}"
    sys.stdout.write(
        f"wrote {folder}\n\n"
        "next:\n"
        f"  pip install --no-build-isolation --no-deps -e {here}\n"
        f"  pytest {folder}/tests\n"
        f"  bestiary train {train} task=addition model=tiny steps=20\n"
    )
    return 0


def _check_name(name: str) -> None:
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        raise ConfigError(
            f"{name!r} cannot name a plugin",
            hint="lower-case letters, digits and underscores, a letter first: my_idea",
        )


def write(folder: Path, kind: str, name: str) -> None:
    """Fill in the templates of a kind.

    Args:
        folder: the new distribution; must not exist.
        kind: one of ``KINDS``.
        name: an identifier; the component, the module ``bestiary_<name>`` and the classes are
            named by it.
    """
    values = {
        "name": name,
        "kind": kind,
        "component": _REGISTRY.get(kind, kind),
        "module": f"bestiary_{name}",
        "dist": f"bestiary-{name.replace('_', '-')}",
        "cls": "".join(part.capitalize() for part in name.split("_")),
        "suite": kind.capitalize() + "Suite",
        "train": Template(_TRAIN[kind]).substitute(name=name),
    }
    source = f"src/{values['module']}"
    for target, template in (
        ("pyproject.toml", "pyproject.toml"),
        ("README.md", "README.md"),
        (f"docs/{name}.md", "page.md"),
        (f"{source}/__init__.py", "init.py"),
        (f"{source}/options.py", f"{kind}_options.py"),
        (f"{source}/{kind}.py", f"{kind}.py"),
        (f"tests/test_{name}.py", "test.py"),
    ):
        _fill(folder / target, template, values)
    (folder / source / "py.typed").touch()


def _fill(path: Path, template: str, values: Mapping[str, str]) -> None:
    text = (files("bestiary.cli") / "templates" / f"{template}.txt").read_text("utf-8")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(Template(text).substitute(values), encoding="utf-8")
