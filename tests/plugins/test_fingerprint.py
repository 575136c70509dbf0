import json

import pytest

from bestiary.errors import PluginError
from bestiary.plugins import fingerprint
from bestiary.plugins.manager import check_fingerprint, differences


def test_it_names_distribution_version_components_and_contents(site):
    site.offer("zoo-one", "zoo_one", "sampler", "one", version="3.1")
    site.offer("zoo-two", "zoo_two", "sampler", "two")
    plugins = site.load(block=["zoo-two"]).fingerprint()["plugins"]
    assert [p["distribution"] for p in plugins] == ["bestiary", "zoo-one"]
    one = plugins[1]
    assert (one["plugin"], one["version"], one["components"]) == ("zoo_one", "3.1", ["sampler/one"])
    assert len(one["content"]) == 32


def test_equal_sets_have_equal_fingerprints_also_as_json(site):
    site.offer("zoo-one", "zoo_one", "sampler", "one")
    first, second = site.load().fingerprint(), site.load().fingerprint()
    assert differences(json.loads(json.dumps(first)), second) == []
    check_fingerprint(first, second)


@pytest.mark.parametrize("name", ["code.py", "conf/one.yaml", "more/deep.py"])
def test_a_changed_file_changes_it(site, name):
    site.offer("zoo-one", "zoo_one", "sampler", "one", files={name: "x = 1"})
    before = site.load().fingerprint()
    (site.folder / "zoo_one" / name).write_text("x = 2")
    after = site.load().fingerprint()
    assert differences(before, after) == ["zoo_one (zoo-one): its files have other contents"]


@pytest.mark.parametrize("name", ["__pycache__/code.pyc", ".hidden/x.py", "code.pyc"])
def test_byte_code_and_hidden_files_do_not_count(site, name):
    site.offer("zoo-one", "zoo_one", "sampler", "one")
    before = site.load().fingerprint()
    file = site.folder / "zoo_one" / name
    file.parent.mkdir(exist_ok=True)
    file.write_text("anything")
    assert differences(before, site.load().fingerprint()) == []


def test_a_moved_file_counts(site):
    site.offer("zoo-one", "zoo_one", "sampler", "one", files={"a.py": "x = 1"})
    before = site.load().fingerprint()
    folder = site.folder / "zoo_one"
    (folder / "a.py").rename(folder / "b.py")
    assert differences(before, site.load().fingerprint()) != []


def test_the_code_of_components_in_another_package_counts(site):
    site.install(
        "zoo-one",
        "zoo_hooks",
        "from bestiary import hookimpl\n@hookimpl\ndef bestiary_register(registry):\n"
        "    registry.sampler('one', target='zoo_code.thing:Thing')\n",
    )
    (site.folder / "zoo_code").mkdir()
    (site.folder / "zoo_code" / "thing.py").write_text("x = 1")
    before = site.load().fingerprint()
    (site.folder / "zoo_code" / "thing.py").write_text("x = 2")
    assert differences(before, site.load().fingerprint()) != []


def test_a_namespace_package_counts_with_the_part_that_is_the_plugins(site):
    source = "from bestiary import hookimpl\n@hookimpl\ndef bestiary_register(registry): ...\n"
    site.install("zoo-one", "acme/zoo", source, entry_points="[bestiary]\nzoo = acme.zoo\n")
    (site.folder / "acme" / "other.py").write_text("x = 1")
    before = site.load().fingerprint()
    (site.folder / "acme" / "other.py").write_text("x = 2")
    assert differences(before, site.load().fingerprint()) == []
    (site.folder / "acme" / "zoo" / "new.py").write_text("x = 2")
    assert differences(before, site.load().fingerprint()) != []


def test_a_plugin_that_is_one_file_counts(site):
    source = "from bestiary import hookimpl\n@hookimpl\ndef bestiary_register(registry): ...\n"
    site.install("zoo-one", "unused", "", entry_points="[bestiary]\nzoo = zoo_single\n")
    (site.folder / "zoo_single.py").write_text(source)
    before = site.load().fingerprint()
    (site.folder / "zoo_single.py").write_text(source + "# changed\n")
    assert differences(before, site.load().fingerprint()) != []


def test_a_large_file_counts_with_its_size(site, monkeypatch):
    monkeypatch.setattr(fingerprint, "_LARGE_BYTES", 4)
    site.offer("zoo-one", "zoo_one", "sampler", "one", files={"data.bin": "12345678"})
    before = site.load().fingerprint()
    (site.folder / "zoo_one" / "data.bin").write_text("87654321")
    assert differences(before, site.load().fingerprint()) == []
    (site.folder / "zoo_one" / "data.bin").write_text("123456789")
    assert differences(before, site.load().fingerprint()) != []


def test_a_mismatch_says_which_plugin_differs_how_and_where(site):
    site.offer("zoo-one", "zoo_one", "sampler", "one", version="1.0")
    site.offer("zoo-two", "zoo_two", "sampler", "two")
    driver = site.load().fingerprint()
    worker = json.loads(json.dumps(site.load(block=["zoo-two"]).fingerprint()))
    worker["plugins"][1].update(version="1.1", components=["sampler/uno"])
    with pytest.raises(PluginError) as caught:
        check_fingerprint(driver, worker, "worker actor/1 on host n3")
    message = str(caught.value)
    assert message.startswith("worker actor/1 on host n3 has other plugins than the driver")
    for words in (
        "zoo_one (zoo-one): version 1.0 wanted, 1.1 found",
        "zoo_one (zoo-one): lacks sampler/one",
        "zoo_one (zoo-one): has sampler/uno besides",
        "zoo_two (zoo-two): wanted and not loaded",
    ):
        assert words in message
    with pytest.raises(PluginError, match="not wanted and loaded"):
        check_fingerprint(worker, driver)


def test_another_version_of_the_hooks_is_a_difference(site):
    mine = site.load().fingerprint()
    assert differences({**mine, "api": "9.0", "digest": ""}, mine) == [
        "hooks: version 9.0 wanted, 1.0 found"
    ]


def test_it_is_made_once(site):
    site.offer("zoo-one", "zoo_one", "sampler", "one")
    plugins = site.load()
    before = plugins.fingerprint()
    (site.folder / "zoo_one" / "new.py").write_text("x = 2")
    assert plugins.fingerprint() is before
