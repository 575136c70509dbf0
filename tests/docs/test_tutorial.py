"""The tutorial is run, block after block."""

import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "tutorials" / "your_first_algorithm.md"
BLOCK = re.compile(r"^```(\w+)(?: file=(\S+))?\n(.*?)^```$", re.M | re.S)


def digest():
    files = sorted((ROOT / "core" / "src").rglob("*.py"))
    return hashlib.blake2b(b"".join(path.read_bytes() for path in files)).hexdigest()


def environment(folder):
    """The tools of this interpreter, with an install folder of the test's own."""
    tools = folder / "tools"
    tools.mkdir()
    install = f'exec {sys.executable} -m pip "$@" --target {folder / "site"} --quiet'
    scripts = {
        # Not editable and not into this environment, otherwise as it is written.
        "pip": 'args=(); for a in "$@"; do [ "$a" = -e ] || args+=("$a"); done; '
        'set -- "${args[@]}"; ' + install,
        "bestiary": f'exec {sys.executable} -m bestiary.cli.main "$@"',
        "pytest": f'exec {sys.executable} -m pytest -p no:cacheprovider --rootdir=. "$@"',
    }
    for name, body in scripts.items():
        path = tools / name
        path.write_text(f"#!/bin/bash\n{body}\n")
        path.chmod(0o755)
    return {
        **os.environ,
        "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(folder / "site"),
        "OMP_NUM_THREADS": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_NO_INDEX": "1",
    }


@pytest.mark.slow
def test_every_block_runs_and_the_core_gains_no_line(tmp_path):
    before, variables = digest(), environment(tmp_path)
    kinds = []
    for kind, file, body in BLOCK.findall(PAGE.read_text()):
        kinds.append(kind)
        if file:
            path = tmp_path / file
            assert path.parent.is_dir(), f"{file}: nothing made its folder"
            path.write_text(body)
            continue
        if kind != "bash":
            continue
        if "pytest" in body or "bestiary train" in body:  # install what was edited since
            source = tmp_path / "bestiary-median-reinforce"
            again = "pip install --no-build-isolation --no-deps --upgrade"
            body = f"{again} {source}\n{body}"
        done = subprocess.run(
            ["bash", "-e", "-o", "pipefail", "-c", body],
            cwd=tmp_path, env=variables, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{body}\n{done.stdout}\n{done.stderr}"
    assert kinds.count("bash") == 3
    assert kinds.count("python") == 4
    assert (tmp_path / "runs" / "median" / "metrics.jsonl").is_file()
    assert (tmp_path / "runs" / "grpo-median" / "metrics.jsonl").is_file()
    assert digest() == before


def test_the_core_names_no_member():
    names = [
        path.name
        for folder in ("algorithms", "plugins", "examples")
        for path in (ROOT / folder).glob("*/src/bestiary_*")
    ]
    pattern = re.compile(r"\b(" + "|".join(map(re.escape, names)) + r")\b")
    for path in sorted((ROOT / "core" / "src").rglob("*.py")):
        assert not pattern.search(path.read_text()), path
