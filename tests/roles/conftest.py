"""Roles on groups of this process, with the test plugin installed for them."""

import sys
from pathlib import Path

import pytest

RUNS = Path(__file__).parents[1] / "runs"
sys.path[:0] = [str(RUNS), str(Path(__file__).parent)]


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """The installed plugins and the test plugin."""
    from run_help import install

    from bestiary.plugins.manager import load_plugins

    site = str(install(tmp_path_factory.mktemp("site") / "lib"))
    sys.path.insert(0, site)
    yield load_plugins()
    sys.path.remove(site)
