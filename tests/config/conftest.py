"""A closed set of plugins: what else is installed does not matter to these tests."""

import sys
from pathlib import Path

import pytest
from pluggy import PluginManager

from bestiary.errors import Owner
from bestiary.plugins.discovery import Selection
from bestiary.plugins.manager import PluginSet
from bestiary.plugins.registry import Registry

DISTS = Path(__file__).parent / "dists"


def closed_set(*extra):
    """A plugin set of the two test plugins and of ``(owner, register function)`` pairs."""
    import zoo_algos
    import zoo_basics

    registry = Registry()
    for owner, register in (
        (Owner("basics", "zoo-basics", "1.0"), zoo_basics.register),
        (Owner("algos", "zoo-algos", "2.0"), zoo_algos.register),
        *extra,
    ):
        with registry.owned_by(owner):
            register(registry)
    return PluginSet(PluginManager("bestiary"), registry, Selection({}, None, ()), ())


@pytest.fixture(scope="session", autouse=True)
def _importable():
    sys.path.insert(0, str(DISTS))
    yield
    sys.path.remove(str(DISTS))


@pytest.fixture
def make_plugins():
    return closed_set


@pytest.fixture
def plugins():
    return closed_set()


@pytest.fixture
def run(plugins):
    """Compose from words, with the choices that every run needs unless they are given."""
    from bestiary.config.compose import compose_run

    def compose(*words, config_dir=None, bare=False):
        base = [] if bare else ["algorithm=grpo", "task=addition", "model=tiny"]
        return compose_run([*base, *words], config_dir, plugins)

    return compose
