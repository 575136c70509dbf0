"""The reference of hooks says what the code says."""

import inspect
from pathlib import Path

from bestiary.plugins import hookspecs
from bestiary.plugins.component import KINDS
from bestiary.plugins.page import page

PAGE = Path(__file__).parents[2] / "docs" / "hooks.md"


def test_the_page_is_made_from_the_code():
    assert PAGE.read_text() == page(), "run: python -m bestiary.plugins.page docs/hooks.md"


def test_every_hook_and_every_kind_of_component_is_on_it():
    text = PAGE.read_text()
    hooks = [n for n, _ in inspect.getmembers(hookspecs, inspect.isfunction) if "bestiary_" in n]
    assert len(hooks) == 9
    for name in (*hooks, *KINDS):
        assert f"### `{name}`" in text
