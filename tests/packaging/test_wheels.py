"""Wheels hold what users need, and the documented extras resolve together (USE-02)."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MEMBERS = [ROOT / "core", *sorted(p.parent for p in ROOT.glob("algorithms/*/pyproject.toml"))]
MEMBERS += sorted(p.parent for p in ROOT.glob("plugins/*/pyproject.toml"))


def pip(*words):
    return subprocess.run(
        [sys.executable, "-m", "pip", *map(str, words)], capture_output=True, text=True, check=False
    )


@pytest.mark.slow
def test_every_wheel_has_its_types_and_entry_points(tmp_path):
    done = pip("wheel", "--no-deps", "--no-build-isolation", "-q", "-w", tmp_path, *MEMBERS)
    assert done.returncode == 0, done.stderr
    wheels = sorted(tmp_path.glob("*.whl"))
    assert len(wheels) == len(MEMBERS)
    for wheel in wheels:
        names = zipfile.ZipFile(wheel).namelist()
        assert any(name.endswith("py.typed") for name in names), wheel.name
        assert any(name.endswith("entry_points.txt") for name in names), wheel.name


@pytest.mark.slow
def test_use_02_the_extras_resolve_with_the_lock():
    constraints = ROOT / "requirements" / "constraints.txt"
    wanted = [f"{ROOT / 'core'}[torch]", *MEMBERS[1:]]
    done = pip("install", "--dry-run", "-q", "--no-build-isolation", "-c", constraints, *wanted)
    assert done.returncode == 0, done.stderr
