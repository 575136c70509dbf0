"""The command line with real workers, and the test plugin installed for it."""

import sys
from pathlib import Path

import pytest

RUNS = Path(__file__).parents[1] / "runs"
sys.path.insert(0, str(RUNS))


@pytest.fixture(scope="module")
def lab_site(tmp_path_factory):
    """A folder with the metadata of the test plugin."""
    from run_help import install

    return install(tmp_path_factory.mktemp("site") / "lib")


@pytest.fixture(scope="module")
def lab(lab_site):
    """The installed plugins and the test plugin, in this process."""
    from bestiary.plugins.manager import load_plugins

    sys.path.insert(0, str(lab_site))
    yield load_plugins()
    sys.path.remove(str(lab_site))


@pytest.fixture(scope="module")
def make_command(tmp_path_factory):
    """Commands that leave nothing behind, also when a test fails."""
    from run_help import Command

    made = []

    def make(**options):
        made.append(Command(tmp_path_factory.mktemp("work"), **options))
        return made[-1]

    yield make
    for command in made:
        command.close()
