"""Listing plugins imports nothing heavy; measured in a process of its own."""

import json
import subprocess
import sys

import pytest

HEAVY = ("torch", "ray", "transformers", "hydra", "omegaconf", "numpy", "vllm", "packaging")

LISTS = """
import json, sys
from bestiary.plugins.manager import load_plugins
from bestiary.plugins import report
plugins = load_plugins()
report.as_json(plugins)
plugins.fingerprint()
report.render(plugins)
"""
MARKS = "import json, sys; from bestiary import hookimpl"
TELLS = "\nprint(json.dumps(sorted(sys.modules)))"


def modules_after(program):
    done = subprocess.run(
        [sys.executable, "-c", program + TELLS], capture_output=True, text=True, check=True
    )
    return set(json.loads(done.stdout))


@pytest.mark.parametrize("program", [LISTS, MARKS], ids=["list", "mark"])
def test_nothing_heavy_is_imported(program):
    assert modules_after(program).isdisjoint(HEAVY)


def test_marking_a_hook_loads_neither_the_manager_nor_rich():
    assert modules_after(MARKS).isdisjoint({"bestiary.plugins.manager", "rich"})
