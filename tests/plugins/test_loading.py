import os
import sys

import pytest

from bestiary.errors import Owner, PluginError


def test_the_core_is_a_plugin_like_any_other(site):
    (record,) = site.load().records
    assert (record.name, record.distribution, record.status) == ("builtin", "bestiary", "active")
    assert record.location.endswith("builtin.py")


def test_a_plugin_is_listed_with_its_hooks_and_components(site):
    site.offer("zoo-one", "zoo_one", "sampler", "one", version="3.1")
    record = site.record("zoo-one")
    assert record.status == "active"
    assert (record.name, record.version) == ("zoo_one", "3.1")
    assert record.hooks == ("bestiary_register",)
    assert record.components == ("sampler/one",)
    assert record.location == str(site.folder / "zoo_one" / "__init__.py")


def test_loading_imports_no_component(site):
    site.offer("zoo-one", "zoo_one", "sampler", "one", files={"code.py": "raise SystemExit"})
    assert site.record("zoo-one").status == "active"
    assert "zoo_one.code" not in sys.modules


def test_an_object_with_hooks_as_methods_is_a_plugin(site):
    source = """
    from bestiary import hookimpl

    class Hooks:
        @hookimpl
        def bestiary_register(self, registry):
            registry.reward("one", target="zoo_one.code:Thing")

    hooks = Hooks()
    """
    site.install("zoo-one", "zoo_one", source, entry_points="[bestiary]\none = zoo_one:hooks\n")
    assert site.record("zoo-one").components == ("reward/one",)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("def broken(:", "SyntaxError"),
        ("raise RuntimeError('out of order')", "RuntimeError: out of order"),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
    ],
)
def test_a_broken_import_is_listed_and_the_rest_load(site, source, words):
    site.install("zoo-broken", "zoo_broken", source)
    site.offer("zoo-one", "zoo_one", "sampler", "one")
    plugins = site.load()
    broken, one = plugins.records[1:]
    assert (broken.distribution, broken.status, one.status) == ("zoo-broken", "failed", "active")
    assert words in broken.reason
    assert "Traceback" in broken.traceback
    assert site.names(plugins, "sampler") == ["one"]


def test_a_broken_plugin_is_named_when_a_name_is_unknown(site):
    site.install("zoo-broken", "zoo_broken", "import no_such_module")
    plugins = site.load()
    with pytest.raises(PluginError, match=r"zoo-broken 1\.2") as caught:
        plugins.registry.get("algorithm", "broken")
    assert "no_such_module" in str(caught.value)


def test_strict_raises_on_a_broken_plugin(site):
    site.install("zoo-broken", "zoo_broken", "import no_such_module")
    with pytest.raises(PluginError, match="no_such_module") as caught:
        site.load(strict=True)
    assert caught.value.owner == Owner("zoo_broken", "zoo-broken", "1.2")


def test_what_a_plugin_registered_before_it_raised_is_dropped(site):
    source = """
    from bestiary import hookimpl

    @hookimpl
    def bestiary_register(registry):
        registry.reward("early", target="zoo_half.code:Thing")
        raise RuntimeError("half way")

    @hookimpl
    def bestiary_on_step(event):
        raise AssertionError("an observer of a plugin that failed was called")
    """
    site.install("zoo-half", "zoo_half", source)
    plugins = site.load()
    assert plugins.records[1].status == "failed"
    assert "half way" in plugins.records[1].reason
    assert site.names(plugins, "reward") == []
    assert plugins.pm.hook.bestiary_on_step.get_hookimpls() == []


def test_plug_01a_a_distribution_found_twice_is_loaded_once(site, monkeypatch):
    site.offer("zoo-one", "zoo_one", "sampler", "one")
    link = site.folder.parent / "lib64"
    link.symlink_to(site.folder)
    monkeypatch.syspath_prepend(str(link))
    plugins = site.load()
    assert [r.distribution for r in plugins.records] == ["bestiary", "zoo-one"]
    assert plugins.registry.get("sampler", "one").owner.distribution == "zoo-one"


def test_plug_01a_a_second_copy_elsewhere_is_shadowed_as_in_python(site, monkeypatch, tmp_path):
    site.offer("zoo-one", "zoo_one", "sampler", "old", version="1.0")
    newer = type(site)(tmp_path / "newer")
    newer.offer("Zoo_One", "zoo_one", "sampler", "new", version="2.0")
    monkeypatch.syspath_prepend(str(newer.folder))
    record = site.record("Zoo_One")
    assert (record.version, record.components) == ("2.0", ("sampler/new",))
    assert len(site.load().records) == 2


def test_an_entry_point_written_twice_counts_once(site):
    site.offer(
        "zoo-one",
        "zoo_one",
        "sampler",
        "one",
        entry_points="[bestiary]\none = zoo_one\n\n[bestiary]\none = zoo_one\n",
    )
    assert site.record("zoo-one").status == "active"


def test_two_entry_points_of_one_name_in_a_distribution_are_an_error(site):
    site.offer("zoo-one", "zoo_one", "sampler", "one", entry_points="")
    site.offer(
        "zoo-two",
        "zoo_two",
        "sampler",
        "two",
        entry_points="[bestiary]\none = zoo_one\none = zoo_two\n",
    )
    first, second = site.load().records[1:]
    assert (first.status, second.status) == ("active", "failed")
    assert "two entry points named 'one'" in second.reason


def test_two_distributions_with_the_same_code_are_named(site):
    site.offer("zoo-one", "zoo_one", "sampler", "one")
    site.offer("fork-one", "zoo_one", "sampler", "one")
    fork, original = site.load().records[1:]
    assert (fork.status, original.status) == ("active", "failed")
    assert "zoo-one" in original.reason
    assert "fork-one" in original.reason


def test_two_distributions_may_name_their_plugins_alike(site):
    site.offer("zoo-one", "zoo_one", "sampler", "one", plugin="same")
    site.offer("zoo-two", "zoo_two", "sampler", "two", plugin="same")
    assert site.names(site.load(), "sampler") == ["one", "two"]


def test_metadata_that_cannot_be_read_hides_no_other_plugin(site):
    site.offer("zoo-one", "zoo_one", "sampler", "one")
    site.offer("zoo-bare", "zoo_bare", "sampler", "bare")
    os.remove(site.folder / "zoo_bare-1.2.dist-info" / "METADATA")
    site.offer(
        "zoo-torn", "zoo_torn", "sampler", "torn", entry_points="[bestiary]\nno value here\n"
    )
    by_status = {}
    for record in site.load().records:
        by_status.setdefault(record.status, []).append(record)
    assert [r.distribution for r in by_status["active"]] == ["bestiary", "zoo-one"]
    assert len(by_status["failed"]) == 2
    assert all("cannot be read" in r.reason for r in by_status["failed"])
    assert all(str(site.folder) in r.location for r in by_status["failed"])


def test_an_object_of_the_process_is_added_like_a_plugin(site):
    from bestiary import hookimpl

    class Script:
        @hookimpl
        def bestiary_register(self, registry):
            registry.reward("mine", target="json:dumps")

    plugins = site.load()
    record = plugins.add(Script(), Owner("script", "script", "0"))
    assert record.components == ("reward/mine",)
    assert plugins.registry.get("reward", "mine").owner.plugin == "script"
    with pytest.raises(PluginError, match="two entry points"):
        plugins.add(Script(), Owner("script", "script", "0"))
