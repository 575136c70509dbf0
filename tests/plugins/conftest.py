"""Real distributions in a folder of the test, found by the ordinary import machinery."""

import importlib
import os
import sys
from importlib.metadata import distributions
from pathlib import Path
from textwrap import dedent

import pytest

from bestiary.plugins import discovery
from bestiary.plugins.manager import load_plugins

REGISTERS = """
from bestiary import hookimpl


@hookimpl
def bestiary_register(registry):
    registry.{kind}("{name}", target="{module}.code:Thing")
"""


class Site:
    """A folder like site-packages, on ``sys.path`` for the length of a test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def install(
        self,
        distribution,
        module,
        source,
        *,
        version="1.2",
        plugin=None,
        files=None,
        entry_points=None,
        metadata=None,
    ):
        """Write a package with its metadata, as an installer would."""
        package = self.folder / module
        package.mkdir(parents=True, exist_ok=True)
        (package / "__init__.py").write_text(dedent(source))
        for name, text in (files or {}).items():
            (package / name).parent.mkdir(parents=True, exist_ok=True)
            (package / name).write_text(dedent(text))
        info = self.folder / f"{distribution.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        if metadata is None:
            metadata = f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n"
        (info / "METADATA").write_text(metadata)
        if entry_points is None:
            entry_points = f"[bestiary]\n{plugin or module} = {module}\n"
        (info / "entry_points.txt").write_text(entry_points)
        importlib.invalidate_caches()

    def offer(self, distribution, module, kind, name, **more):
        """Install a distribution that registers one component."""
        self.install(
            distribution, module, REGISTERS.format(kind=kind, name=name, module=module), **more
        )

    def load(self, **options):
        return load_plugins(**options)

    def names(self, plugins, kind):
        """The names of a kind that the test installed; the core has some of its own."""
        found = plugins.registry.components(kind)
        return [c.name for c in found if c.owner.distribution != "bestiary"]

    def record(self, distribution, **options):
        """What became of the one plugin of a distribution."""
        (record,) = (r for r in self.load(**options).records if r.distribution == distribution)
        return record


@pytest.fixture
def site(tmp_path, monkeypatch):
    """Only the core and what the test installs are there, and no variable selects plugins."""
    root = tmp_path.resolve()

    def installed():
        for dist in distributions():
            where = Path(os.path.realpath(str(dist.locate_file(""))))
            core = "bestiary.plugins.builtin" in (dist.read_text("entry_points.txt") or "")
            if core or where.is_relative_to(root):
                yield dist

    for name in list(os.environ):
        if name.startswith("BESTIARY_"):
            monkeypatch.delenv(name)
    monkeypatch.setattr(discovery, "distributions", installed)
    folder = root / "lib"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield Site(folder)
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(str(root)):
            del sys.modules[name]
    importlib.invalidate_caches()
