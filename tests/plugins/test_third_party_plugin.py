"""The example distribution: small, public names only, installed and removed like any other."""

import ast
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "third_party_plugin"
SOURCES = sorted((EXAMPLE / "src").rglob("*.py"))
PUBLIC = {"bestiary", "bestiary.batch", "bestiary.errors", "bestiary.protocols"}

LISTS = """
from bestiary.plugins.manager import load_plugins
from bestiary.plugins import report
print(report.as_json(load_plugins()))
"""
CHOOSES = """
import sys
import pytest
from bestiary.plugins.manager import load_plugins
from bestiary.protocols import AdvantageOptions
registry = load_plugins().registry
algorithm = registry.get("algorithm", "lab_reinforce")
options = algorithm.options_class()(samples=4)
made = algorithm.build(options, 0)
registry.get("advantage", options.components["advantage"]).build()
registry.get("sampler", "lab_hardest").build(None, [])
assert (type(made).__name__, made.options.samples) == ("Reinforce", 4)
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", *sys.argv[1:]]))
"""


def listed(target):
    environment = {**os.environ, "PYTHONPATH": str(target)}
    done = subprocess.run(
        [sys.executable, "-c", LISTS], env=environment, capture_output=True, text=True, check=True
    )
    rows = json.loads(done.stdout)
    return {row["distribution"]: row for row in rows}


def test_its_source_is_shorter_than_120_lines():
    assert sum(len(path.read_text().splitlines()) for path in SOURCES) < 120


def test_it_imports_public_names_only():
    imported = set()
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                imported.add(node.module)
            elif isinstance(node, ast.Import):
                imported.update(alias.name for alias in node.names)
    core = {name for name in imported if name.split(".")[0] == "bestiary"}
    assert core
    assert core <= PUBLIC


def test_it_is_installed_listed_chosen_tested_and_gone(tmp_path):
    # Built from a copy, so that the build leaves nothing in the repository.
    source, target = tmp_path / "source", tmp_path / "site"
    shutil.copytree(EXAMPLE, source)
    install = ["install", "--no-deps", "--no-build-isolation", "--no-index", "--quiet"]
    environment = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    subprocess.run(
        [sys.executable, "-m", "pip", *install, "--target", str(target), str(source)],
        env=environment,
        check=True,
    )
    row = listed(target)["bestiary-lab"]
    assert row["status"] == "active"
    assert row["components"] == [
        "algorithm/lab_reinforce",
        "advantage/lab_median",
        "sampler/lab_hardest",
    ]
    assert row["location"].startswith(str(target))

    done = subprocess.run(  # also its own tests, in the process that has imported torch already
        [sys.executable, "-c", CHOOSES, str(source / "tests")],
        env={**environment, "PYTHONPATH": str(target), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout

    shutil.rmtree(target)
    remaining = listed(target).get("bestiary-lab")
    assert remaining is None or not remaining["location"].startswith(str(target))
