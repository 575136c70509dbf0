import pytest

from bestiary.errors import Owner, PluginError
from bestiary.plugins.component import KINDS
from bestiary.plugins.registry import Registry

LAB = Owner("lab", "bestiary-lab", "0.1")
ZOO = Owner("zoo", "bestiary_zoo", "2.0")


@pytest.fixture
def registry():
    registry = Registry()
    with registry.owned_by(LAB):
        registry.advantage("group", target="lab.code:Group", options="lab.options:GroupOptions")
        registry.advantage("median", target="lab.code:Median")
    with registry.owned_by(ZOO):
        registry.advantage("group", target="zoo.code:Group")
        registry.loss("clip", target="zoo.code:Clip")
    return registry


def test_there_is_one_method_for_each_kind():
    registry = Registry()
    with registry.owned_by(LAB):
        for kind in KINDS:
            getattr(registry, kind)("thing", target="lab.code:Thing", options="lab.options:Thing")
    for kind in KINDS:
        component = registry.get(kind, "thing")
        assert (component.kind, component.name, component.owner) == (kind, "thing", LAB)
        assert (component.target, component.options) == ("lab.code:Thing", "lab.options:Thing")
    assert len(registry.components()) == len(KINDS) == 13


def test_plug_01b_two_owners_of_a_name_are_both_named_with_the_way_out(registry):
    with pytest.raises(PluginError) as caught:
        registry.get("advantage", "group")
    message = str(caught.value)
    assert "lab (bestiary-lab 0.1) and zoo (bestiary_zoo 2.0)" in message
    assert "advantage=bestiary-lab:group or advantage=bestiary-zoo:group" in message
    assert "BESTIARY_BLOCK_PLUGINS" in message
    assert "pip uninstall bestiary-lab or bestiary-zoo" in message


def test_plug_01b_other_names_of_both_owners_stay_usable(registry):
    assert registry.get("advantage", "median").owner == LAB
    assert registry.get("loss", "clip").owner == ZOO
    assert registry.names("advantage") == ["group", "median"]


@pytest.mark.parametrize(
    ("name", "owner"),
    [("bestiary-lab:group", LAB), ("Bestiary_Zoo:group", ZOO), ("bestiary-lab:median", LAB)],
)
def test_a_distribution_before_the_name_chooses(registry, name, owner):
    assert registry.get("advantage", name).owner == owner


def test_plug_01b_real_distributions_in_conflict_are_listed_as_such(site):
    site.offer("bestiary-grpo", "zoo_grpo", "algorithm", "grpo", version="0.1")
    site.offer("stranger", "stranger", "algorithm", "grpo", version="9.0")
    plugins = site.load()
    assert [r.status for r in plugins.records] == ["active"] * 3
    assert "algorithm/grpo is also offered by" in plugins.records[1].reason
    with pytest.raises(PluginError, match=r"stranger 9\.0.*bestiary-grpo 0\.1"):
        plugins.registry.get("algorithm", "grpo")
    assert site.load(block=["stranger"]).registry.get("algorithm", "grpo").owner.version == "0.1"


def test_one_distribution_with_a_name_twice_is_told_to_block_a_plugin():
    registry = Registry()
    for plugin in ("a", "b"):
        with registry.owned_by(Owner(plugin, "zoo", "1")):
            registry.loss("clip", target="zoo.code:Clip")
    with pytest.raises(PluginError, match=r"block one .*: a or b"):
        registry.get("loss", "clip")


@pytest.mark.parametrize(
    ("kind", "name", "words"),
    [
        ("advantage", "grup", ["did you mean 'group'", "median (bestiary-lab 0.1)"]),
        ("advantage", "Median", ["did you mean 'median'"]),
        ("advantage", "bestiary-lab:medain", ["did you mean 'bestiary-lab:median'"]),
        ("advantage", "other:median", ["median (bestiary-lab 0.1)"]),
        ("advantage", "clip", ["'clip' is the name of a loss"]),
        ("sampler", "group", ["no loaded plugin offers any sampler"]),
        ("sample", "group", ["no kind of component 'sample'", "'sampler'"]),
    ],
)
def test_an_unknown_name_gets_the_nearest_names_and_who_offers_what(registry, kind, name, words):
    with pytest.raises(PluginError) as caught:
        registry.get(kind, name)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("name", "target", "options", "words"),
    [
        ("a b", "lab.code:X", None, "a name is a letter followed by"),
        ("lab:x", "lab.code:X", None, "a name is a letter followed by"),
        (3, "lab.code:X", None, "a name is a letter followed by"),
        ("x", "lab.code.X", None, "is not a string 'module:attribute'"),
        ("x", "lab/code.py:X", None, "is not a string 'module:attribute'"),
        ("x", Registry, None, "is not a string 'module:attribute'"),
        ("x", "lab.code:X", dict, "options=<class 'dict'>"),
    ],
)
def test_a_wrong_registration_names_its_owner_and_adds_nothing(name, target, options, words):
    registry = Registry()

    def register():
        with registry.owned_by(LAB):
            registry.loss("good", target="lab.code:Good")
            registry.loss(name, target=target, options=options)

    with pytest.raises(PluginError) as caught:
        register()
    assert words in str(caught.value)
    assert caught.value.owner == LAB
    assert registry.components() == []


def test_a_name_that_one_plugin_registers_twice_is_refused():
    registry = Registry()
    with registry.owned_by(LAB):
        registry.loss("x", target="lab.code:X")
        with pytest.raises(PluginError, match="registers this name twice"):
            registry.loss("x", target="lab.code:Y")


def test_registering_after_loading_is_refused(registry):
    with pytest.raises(PluginError, match="inside the hook bestiary_register"):
        registry.loss("late", target="lab.code:Late")


def test_registrations_of_two_owners_do_not_mix(registry):
    with registry.owned_by(LAB):
        with pytest.raises(PluginError, match="is registering already"), registry.owned_by(ZOO):
            pass
        registry.reward("r", target="lab.code:R")
    assert registry.get("reward", "r").owner == LAB
