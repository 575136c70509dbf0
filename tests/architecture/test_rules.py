"""The rules of the repository that a reader relies on."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from bestiary.plugins.manager import load_plugins

ROOT = Path(__file__).resolve().parents[2]
MEMBERS = sorted(p.parent for p in ROOT.glob("*/*/pyproject.toml") if p.parts[-3] != "examples")


def test_layers_hold():
    lint = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([str(lint)], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_every_algorithm_has_a_page():
    plugins = load_plugins()
    ours = {m.name for m in MEMBERS if m.parent.name == "algorithms"}
    for name in plugins.registry.names("algorithm"):
        owner = plugins.registry.get("algorithm", name).owner.distribution
        if owner.removeprefix("bestiary-") in ours:
            assert (ROOT / "docs" / "algorithms" / f"{name}.md").is_file(), name


def test_every_member_is_checked_by_every_tool():
    layers = (ROOT / ".importlinter").read_text()
    settings = (ROOT / "pyproject.toml").read_text()
    for member in MEMBERS:
        package = next((member / "src").iterdir()).name
        assert layers.count(f"    {package}\n") >= 3, f"{package} is missing in .importlinter"
        path = f"{member.relative_to(ROOT)}/src"
        assert path in settings, f"{path} is missing in mypy_path of pyproject.toml"


@pytest.mark.parametrize("member", MEMBERS, ids=lambda m: m.name)
def test_members_have_the_same_shape(member):
    text = (member / "pyproject.toml").read_text()
    name = member.name.replace("_", "-")
    assert f'name = "bestiary-{name}"' in text
    assert "[project.entry-points.bestiary]" in text
    assert re.search(r'"bestiary(\[torch\])?>=0\.1,<0\.2"', text)
    assert (member / "README.md").is_file()
    assert (member / "src" / f"bestiary_{member.name}" / "py.typed").is_file()


def test_nothing_is_pickled_from_disk():
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for folder in ("core", "algorithms", "plugins")
        for path in (ROOT / folder).rglob("*.py")
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if re.search(r"pickle\.load|torch\.load\(|trust_remote_code=True", line)
    ]
    assert found == []
