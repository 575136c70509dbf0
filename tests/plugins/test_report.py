import json
from io import StringIO

from rich.console import Console

from bestiary.plugins import report


def shown(plugins):
    console = Console(width=200, file=StringIO())
    console.print(report.render(plugins))
    return console.file.getvalue()


def mixed(site):
    site.offer("zoo-one", "zoo_one", "sampler", "one", version="3.1")
    site.offer("zoo-two", "zoo_two", "sampler", "two")
    site.install("zoo-broken", "zoo_broken", "raise RuntimeError('[bold]no[/bold] device')")
    return site.load(block=["zoo-two", "nobody"])


def test_json_has_a_row_for_each_plugin_whatever_became_of_it(site):
    rows = {row["distribution"]: row for row in json.loads(report.as_json(mixed(site)))}
    assert {name: row["status"] for name, row in rows.items()} == {
        "bestiary": "active",
        "zoo-broken": "failed",
        "zoo-one": "active",
        "zoo-two": "blocked",
    }
    one = rows["zoo-one"]
    assert set(one) == {
        "name",
        "distribution",
        "version",
        "location",
        "status",
        "reason",
        "hooks",
        "components",
        "traceback",
    }
    assert (one["name"], one["version"]) == ("zoo_one", "3.1")
    assert one["hooks"] == ["bestiary_register"]
    assert one["components"] == ["sampler/one"]
    assert "RuntimeError" in rows["zoo-broken"]["traceback"]
    assert "blocked by --block-plugin" in rows["zoo-two"]["reason"]


def test_the_table_shows_the_same_with_reasons_and_notes(site):
    text = shown(mixed(site))
    for words in (
        "zoo-one",
        "3.1",
        "sampler/one",
        "register",
        str(site.folder),
        "zoo_broken (zoo-broken 1.2) failed:",
        "[bold]no[/bold] device",
        "blocked by --block-plugin",
        "note: --block-plugin names 'nobody'",
    ):
        assert words in text


def test_a_conflict_is_shown(site):
    site.offer("zoo-one", "zoo_one", "sampler", "same")
    site.offer("zoo-two", "zoo_two", "sampler", "same")
    assert "sampler/same is also offered by zoo_two (zoo-two 1.2)" in shown(site.load())
