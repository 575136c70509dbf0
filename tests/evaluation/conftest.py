"""The fake worker group of the role tests, with the test plugin installed."""

import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS / "runs"), str(TESTS / "roles")]


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """The installed plugins and the test plugin."""
    from run_help import install

    from bestiary.plugins.manager import load_plugins

    site = str(install(tmp_path_factory.mktemp("site") / "lib"))
    sys.path.insert(0, site)
    yield load_plugins()
    sys.path.remove(site)
