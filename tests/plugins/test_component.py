import sys
from dataclasses import dataclass
from typing import ClassVar

import pytest

from bestiary.errors import Owner, PluginError
from bestiary.plugins.component import KINDS, Component
from bestiary.protocols import AdvantageOptions, AlgorithmOptions, LossOptions

OWNER = Owner("zoo", "bestiary-zoo", "2.0")

CODE = """
from dataclasses import dataclass
from bestiary.protocols import AdvantageOptions, AlgorithmOptions, LossOptions

@dataclass(frozen=True, kw_only=True, slots=True)
class Options(AdvantageOptions):
    scale: float = 1.0

    def __post_init__(self):
        if self.scale <= 0:
            raise ValueError(f"scale={self.scale}: must be above 0")

@dataclass
class Thawed(AdvantageOptions.__mro__[1]):
    scale: float = 1.0

@dataclass(frozen=True)
class Foreign:
    scale: float = 1.0

@dataclass(frozen=True, kw_only=True, slots=True)
class Setting(LossOptions):
    requires: frozenset = frozenset({"advantages"})

@dataclass(frozen=True, kw_only=True)
class Demanding:
    path: str

class Plain:
    pass

class Estimator:
    def __init__(self, options):
        self.options = options

    def __call__(self, x, reduce):
        return {}

class Sampler(Estimator):
    def __init__(self, options, source):
        self.options, self.source = options, source

    def draw(self, n): ...
    def accept(self, groups): ...
    def observe(self, batch): ...

class Raising:
    def __init__(self, options):
        raise KeyError("colour")

CONSTANT = 3
"""


@pytest.fixture
def component(site):
    site.install(
        "bestiary-zoo",
        "zoo",
        "",
        version="2.0",
        files={
            "code.py": CODE,
            "needs.py": "import no_such_library",
            "ends.py": "raise RuntimeError('no device')",
        },
    )

    def make(kind="advantage", target="zoo.code:Estimator", options="zoo.code:Options"):
        return Component(kind, "x", target, options, OWNER)

    return make


def message(call):
    with pytest.raises(PluginError) as caught:
        call()
    assert caught.value.owner == OWNER
    return str(caught.value)


def test_code_is_imported_when_it_is_chosen_and_not_before(component):
    chosen = component()
    assert "zoo.code" not in sys.modules
    assert chosen.load().__name__ == "Estimator"
    assert "zoo.code" in sys.modules


def test_building_passes_options_and_arguments(component):
    options = component().options_class()(scale=2.0)
    assert component().build(options).options.scale == 2.0
    assert component().build().options.scale == 1.0


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("zoo.coed:Estimator", ["importing zoo.coed", "No module named 'zoo.coed'", "correct"]),
        ("zoo.code:Estimater", ["no attribute 'Estimater'", "did you mean 'Estimator'"]),
        (
            "zoo.needs:Thing",
            ["No module named 'no_such_library'", "install what bestiary-zoo needs"],
        ),
        ("zoo.ends:Thing", ["RuntimeError: no device"]),
        ("zoo.code:CONSTANT", ["a class or factory is needed, this is a int"]),
    ],
)
def test_a_target_that_cannot_be_loaded_names_its_owner(component, target, words):
    text = message(component(target=target).load)
    assert "advantage 'x', target" in text
    assert "zoo (bestiary-zoo 2.0)" in text
    for word in words:
        assert word in text


@pytest.mark.parametrize(
    ("kind", "options", "words"),
    [
        ("advantage", "zoo.code:Thawed", "Thawed is not frozen"),
        ("advantage", "zoo.code:Foreign", "Foreign must derive from bestiary.protocols.Advantage"),
        ("algorithm", "zoo.code:Options", "must derive from bestiary.protocols.AlgorithmOptions"),
        ("loss", "zoo.code:Options", "Options must derive from bestiary.protocols.LossOptions"),
        ("loss", "zoo.code:Setting", "makes a setting of requires"),
        ("reward", "zoo.code:Plain", "a frozen dataclass is needed"),
        ("reward", "zoo.code:CONSTANT", "a frozen dataclass is needed"),
        ("reward", "zoo.code:Option", "did you mean 'Options'"),
    ],
)
def test_options_are_checked_when_chosen(component, kind, options, words):
    assert words in message(component(kind=kind, options=options).options_class)


@pytest.mark.parametrize(
    ("kind", "base"),
    [("algorithm", AlgorithmOptions), ("advantage", AdvantageOptions), ("loss", LossOptions)],
)
def test_a_component_without_options_has_those_of_its_kind(component, kind, base):
    assert component(kind=kind, options=None).options_class() is base


def test_other_kinds_without_options_have_none(component):
    for kind in KINDS:
        assert component(kind=kind, options=None).options_class()() is not None


def test_a_class_level_requirement_is_not_a_setting(component, monkeypatch):
    @dataclass(frozen=True, kw_only=True, slots=True)
    class Good(LossOptions):
        requires: ClassVar[frozenset[str]] = frozenset({"advantages"})
        clip: float = 0.2

    component().load()
    monkeypatch.setattr(sys.modules["zoo.code"], "Good", Good, raising=False)
    assert component(kind="loss", options="zoo.code:Good").options_class() is Good


def test_a_constructor_that_raises_is_attributed(component):
    text = message(component(target="zoo.code:Raising").build)
    assert "building advantage 'x' failed: KeyError: 'colour'" in text


def test_options_of_another_class_are_refused(component):
    assert "takes options of class Options, not dict" in message(lambda: component().build({}))


def test_default_options_that_cannot_be_made_are_attributed(component):
    text = message(component(kind="reward", options="zoo.code:Demanding").build)
    assert "making the default options of reward 'x' failed" in text
    assert "path" in text


def test_an_object_that_lacks_a_part_of_its_face_is_refused(component):
    chosen = component(kind="sampler", target="zoo.code:Sampler", options=None)
    text = message(lambda: chosen.build(None, "source"))
    assert "lacks state_dict, load_state_dict" in text
    assert "a sampler needs all of: draw, accept, observe" in text


def test_its_qualified_name_has_the_distribution(component):
    assert component().qualified == "bestiary-zoo:x"
    assert str(component()) == "advantage 'x'"
