"""Plain values to dataclasses: what is accepted, what is refused, and the way back."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Literal, Optional

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bestiary.config.plain import defaults_of, escaped, to_plain
from bestiary.config.typed import describe, instantiate
from bestiary.errors import BestiaryError, ConfigError, ModelError, Owner, PluginError

OWNER = Owner("p", "zoo-p", "1")


class Colour(Enum):
    RED = 1
    BLUE = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Inner:
    depth: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Every:
    flag: bool = False
    whole: int = 0
    real: float = 0.0
    text: str = ""
    maybe: Optional[int] = None  # noqa: UP045 - the older spelling is accepted as well
    either: int | str = 0
    auto: bool | Literal["auto"] = "auto"
    choice: Literal["a", "b", 3] = "a"
    pair: tuple[int, float] = (1, 2.0)
    many: tuple[str, ...] = ()
    several: Sequence[int] = ()
    items: list[int] = field(default_factory=list)
    unique: frozenset[int] = frozenset()
    table: Mapping[str, float] = field(default_factory=dict)
    anything: Any = None
    inner: Inner = field(default_factory=Inner)
    perhaps: Inner | None = None
    place: Path = Path("x")
    colour: Colour = Colour.RED


def make(**values):
    return instantiate(Every, values, key="k", owner=OWNER)


ACCEPTED = [
    ("real", 1, 1.0),
    ("text", 5, "5"),
    ("maybe", 3, 3),
    ("maybe", None, None),
    ("either", 5, 5),
    ("either", "x", "x"),
    ("auto", True, True),
    ("choice", 3, 3),
    ("pair", [3, 4], (3, 4.0)),
    ("many", ["x", "y"], ("x", "y")),
    ("several", [1, 2], (1, 2)),
    ("items", [1], [1]),
    ("unique", [2, 1, 2], frozenset({1, 2})),
    ("table", {"a": 1}, {"a": 1.0}),
    ("anything", {"a": [1]}, {"a": [1]}),
    ("inner", {"depth": 2}, Inner(depth=2)),
    ("perhaps", {"depth": 2}, Inner(depth=2)),
    ("perhaps", None, None),
    ("place", "a/b", Path("a/b")),
    ("colour", "BLUE", Colour.BLUE),
]


@pytest.mark.parametrize(("name", "given_value", "wanted"), ACCEPTED)
def test_accepted_values_arrive_with_the_annotated_type(name, given_value, wanted):
    found = getattr(make(**{name: given_value}), name)
    assert found == wanted
    assert type(found) is type(wanted)


REFUSED = [
    ("flag", 1, "k.flag=1: wanted true or false"),
    ("flag", "true", "k.flag='true': wanted true or false"),
    ("whole", True, "k.whole=true: wanted a whole number"),
    ("whole", 1.0, "k.whole=1.0: wanted a whole number"),
    ("whole", None, "k.whole=null: wanted a whole number"),
    ("real", "1", "k.real='1': wanted a number"),
    ("maybe", "x", "k.maybe='x': wanted a whole number or null"),
    ("auto", "atuo", "k.auto='atuo': wanted true or false or one of auto"),
    ("choice", "c", "k.choice='c': wanted one of a, b, 3"),
    ("choice", True, "k.choice=true: wanted one of a, b, 3"),
    ("pair", [1], "k.pair=[1]: wanted a list [a whole number, a number]"),
    ("pair", [1, "x"], "k.pair[1]='x': wanted a number"),
    ("many", "abc", "k.many='abc': wanted a list, each text"),
    ("table", [1], "k.table=[1]: wanted a mapping"),
    ("table", {"a": "x"}, "k.table.a='x': wanted a number"),
    ("inner", 3, "k.inner=3: wanted a section with the keys depth"),
    ("perhaps", {"depth": "x"}, "k.perhaps.depth='x': wanted a whole number"),
    ("colour", "GREEN", "k.colour='GREEN': wanted one of RED, BLUE"),
]


@pytest.mark.parametrize(("name", "value", "message"), REFUSED)
def test_refused_values_name_key_value_wish_and_owner(name, value, message):
    with pytest.raises(ConfigError) as caught:
        make(**{name: value})
    assert caught.value.message == message
    assert caught.value.owner == OWNER


def test_an_unknown_key_inside_a_section_names_the_nearest(capsys):
    with pytest.raises(
        ConfigError, match=r"k.inner has no option 'dept'; did you mean 'k.inner.depth'"
    ):
        make(inner={"dept": 1})
    with pytest.raises(ConfigError, match=r"k.perhaps has no option 'dept'"):
        make(perhaps={"dept": 1})


def test_what_a_configuration_cannot_express_is_the_owners_fault():
    @dataclass(frozen=True, kw_only=True, slots=True)
    class Odd:
        call: Callable[[], int] = int

    with pytest.raises(PluginError) as caught:
        instantiate(Odd, {"call": 1}, key="k", owner=OWNER)
    assert "a configuration cannot express" in str(caught.value)
    assert caught.value.owner == OWNER


def test_annotations_that_do_not_resolve_are_the_owners_fault():
    @dataclass(frozen=True, kw_only=True, slots=True)
    class Lost:
        x: "NoSuchType" = None  # noqa: F821 - the fault that is tested

    with pytest.raises(PluginError, match="NoSuchType"):
        instantiate(Lost, {}, key="k", owner=OWNER)


@pytest.mark.parametrize("kind", [ValueError, TypeError, ZeroDivisionError])
def test_what_post_init_raises_is_a_config_error_of_the_owner(kind):
    @dataclass(frozen=True, kw_only=True, slots=True)
    class Picky:
        x: int = 0

        def __post_init__(self):
            raise kind("x=0: too small")

    with pytest.raises(ConfigError) as caught:
        instantiate(Picky, {}, key="loss", owner=OWNER, what="loss=picky")
    assert caught.value.message == "loss=picky: x=0: too small"
    assert isinstance(caught.value.__cause__, kind)


def test_errors_of_our_own_keep_their_class_and_get_an_owner():
    @dataclass(frozen=True, kw_only=True, slots=True)
    class Model:
        def __post_init__(self):
            raise ModelError("no such shape")

    with pytest.raises(ModelError) as caught:
        instantiate(Model, {}, key="model", owner=OWNER, what="model=m")
    assert str(caught.value) == "model=m: no such shape [owner: p (zoo-p 1)]"


def test_a_missing_value_says_what_to_add():
    @dataclass(frozen=True, kw_only=True, slots=True)
    class Needy:
        path: str

    assert defaults_of(Needy) == {"path": "???"}
    for data in ({}, {"path": "???"}):
        with pytest.raises(ConfigError, match=r"model.path must be given") as caught:
            instantiate(Needy, data, key="model", owner=None, what="model=hf")
        assert caught.value.hint == "add model.path=VALUE"


def test_options_that_are_no_dataclass_are_the_owners_fault():
    with pytest.raises(PluginError, match="is not a dataclass"):
        defaults_of(int, OWNER)


@pytest.mark.parametrize("value", [math.inf, -math.inf])
def test_infinity_survives_json(value):
    assert to_plain(value) == str(value)
    assert make(real=to_plain(value)).real == value


def test_nan_survives_json():
    assert math.isnan(make(real=to_plain(math.nan)).real)


def test_values_that_no_json_holds_are_refused():
    with pytest.raises(TypeError, match="cannot hold object"):
        to_plain(object())


def test_interpolation_marks_in_defaults_are_literal():
    from omegaconf import OmegaConf

    value = {"a": ["${x}", {"b": "costs ${y}"}], "c": 1}
    assert OmegaConf.to_container(OmegaConf.create(escaped(value)), resolve=True) == value


@given(
    st.builds(
        Every,
        flag=st.booleans(),
        whole=st.integers(),
        real=st.floats(allow_nan=False),
        text=st.text(),
        maybe=st.none() | st.integers(),
        either=st.integers() | st.text(),
        auto=st.booleans() | st.just("auto"),
        choice=st.sampled_from(["a", "b", 3]),
        pair=st.tuples(st.integers(), st.floats(allow_nan=False)),
        many=st.lists(st.text()).map(tuple),
        several=st.lists(st.integers()).map(tuple),
        items=st.lists(st.integers()),
        unique=st.frozensets(st.integers()),
        table=st.dictionaries(st.text(), st.floats(allow_nan=False)),
        perhaps=st.none() | st.builds(Inner, depth=st.integers()),
        colour=st.sampled_from(Colour),
    ).filter(lambda every: "???" not in (every.text, every.either))
)
def test_a_round_trip_through_plain_values_is_exact(every):
    import json

    data = json.loads(json.dumps(to_plain(every), allow_nan=False))
    back = instantiate(Every, data, key="k", owner=None)
    assert back == every
    assert [type(getattr(back, n)) for n in Every.__slots__] == [
        type(getattr(every, n)) for n in Every.__slots__
    ]


def test_descriptions_are_words():
    assert describe(int | None) == "a whole number or null"
    assert describe(Literal[True, "auto"]) == "one of true, auto"
    assert describe(dict) == "a mapping"
    assert describe(list) == "a list"
    assert describe(Path) == "a path"


def test_every_error_here_is_one_of_ours():
    assert issubclass(ConfigError, BestiaryError)
    assert ConfigError("x").exit_code == 2
