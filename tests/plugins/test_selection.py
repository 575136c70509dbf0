import sys

import pytest

from bestiary.errors import PluginError
from bestiary.plugins.discovery import Selection


@pytest.fixture
def two(site):
    site.offer("zoo-one", "zoo_one", "sampler", "one", version="0.2", plugin="one")
    site.offer("zoo-two", "zoo_two", "sampler", "two", version="1.5", plugin="two")
    return site


def statuses(plugins):
    return {record.name: record.status for record in plugins.records}


@pytest.mark.parametrize("pattern", ["one", "zoo-one", "Zoo_One", "zoo-one:one"])
def test_a_blocked_plugin_is_listed_and_not_imported(two, monkeypatch, pattern):
    monkeypatch.setenv("BESTIARY_BLOCK_PLUGINS", pattern)
    plugins = two.load()
    assert statuses(plugins) == {"builtin": "active", "one": "blocked", "two": "active"}
    assert plugins.records[1].reason == "blocked by BESTIARY_BLOCK_PLUGINS"
    assert "zoo_one" not in sys.modules
    with pytest.raises(PluginError, match="blocked by BESTIARY_BLOCK_PLUGINS"):
        plugins.registry.get("sampler", "one")


def test_blocks_of_the_variable_and_the_command_add_up(two, monkeypatch):
    monkeypatch.setenv("BESTIARY_BLOCK_PLUGINS", "one")
    plugins = two.load(block=["two"])
    assert statuses(plugins) == {"builtin": "active", "one": "blocked", "two": "blocked"}
    assert plugins.environment() == {"BESTIARY_BLOCK_PLUGINS": "one,two"}


@pytest.mark.parametrize("pattern", ["builtin", "bestiary", "bestiary:builtin"])
def test_the_cores_own_plugin_cannot_be_blocked(two, pattern):
    with pytest.raises(PluginError, match=f"--block-plugin names '{pattern}'.*cannot be blocked"):
        two.load(block=[pattern])


@pytest.mark.parametrize(
    ("allowed", "active"),
    [("", ["builtin"]), ("two", ["builtin", "two"]), ("zoo-one, two", ["builtin", "one", "two"])],
)
def test_the_allow_list_acts_before_import(two, monkeypatch, allowed, active):
    monkeypatch.setenv("BESTIARY_LOAD_PLUGINS", allowed)
    plugins = two.load()
    assert [r.name for r in plugins.records if r.status == "active"] == active
    assert ("zoo_one" in sys.modules) == ("one" in active)
    assert plugins.environment()["BESTIARY_LOAD_PLUGINS"] == allowed.replace(" ", "")


def test_a_pattern_that_matches_nothing_is_noted_with_the_nearest_name(two, monkeypatch, caplog):
    monkeypatch.setenv("BESTIARY_BLOCK_PLUGINS", "zoo-onn")
    (note,) = two.load().notes
    assert "zoo-onn" in note
    assert "did you mean 'zoo-one'" in note
    assert note in caplog.text


@pytest.mark.parametrize(
    "required",
    ["zoo-one", "zoo-one>=0.1", "zoo_one>=0.1,<0.3 zoo-two", "zoo-one==0.2,zoo-two>=1, <2"],
)
def test_requirements_that_are_met_pass(two, monkeypatch, required):
    monkeypatch.setenv("BESTIARY_REQUIRE_PLUGINS", required)
    assert set(statuses(two.load()).values()) == {"active"}


@pytest.mark.parametrize(
    ("required", "words"),
    [
        ("zoo-one>=0.3", "zoo-one>=0.3: 0.2 is installed"),
        ("zoo-onne", "zoo-onne is not installed; did you mean 'zoo-one'"),
        ("zoo-two zoo-one>1,<2", "zoo-one>1,<2: 0.2 is installed"),
        (">=3", "'>=3' is not a requirement"),
    ],
)
def test_requirements_that_are_not_met_stop_before_import(two, monkeypatch, required, words):
    monkeypatch.setenv("BESTIARY_REQUIRE_PLUGINS", required)
    with pytest.raises(PluginError) as caught:
        two.load()
    assert words in str(caught.value)
    assert "zoo_one" not in sys.modules


def test_a_required_plugin_must_not_be_blocked(two, monkeypatch):
    monkeypatch.setenv("BESTIARY_REQUIRE_PLUGINS", "zoo-one")
    with pytest.raises(PluginError, match="zoo-one: blocked by --block-plugin"):
        two.load(block=["one"])


def test_a_required_plugin_must_not_be_broken(two, monkeypatch):
    two.install("zoo-broken", "zoo_broken", "import no_such_module")
    monkeypatch.setenv("BESTIARY_REQUIRE_PLUGINS", "zoo-broken>=1")
    with pytest.raises(PluginError, match=r"zoo-broken>=1: .* failed: .*no_such_module"):
        two.load()


def test_a_listing_shows_unmet_requirements_as_notes(two, monkeypatch):
    monkeypatch.setenv("BESTIARY_REQUIRE_PLUGINS", "zoo-one>=0.3")
    plugins = two.load(enforce_required=False)
    assert statuses(plugins)["one"] == "active"
    assert "zoo-one>=0.3" in plugins.notes[0]


def test_another_process_can_be_given_the_same_selection(two, monkeypatch):
    monkeypatch.setenv("BESTIARY_REQUIRE_PLUGINS", "zoo-one>=0.1,<0.3 zoo-two")
    there = two.load(block=["somebody"]).environment()
    again = Selection.read(there)
    assert list(again.block) == ["somebody"]
    assert again.require == ("zoo-one>=0.1,<0.3", "zoo-two")
