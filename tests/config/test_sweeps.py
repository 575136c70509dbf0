"""Which runs a sweep means, and that all are checked before the first starts."""

import pytest

from bestiary.config.catalog import Catalog
from bestiary.config.compose import compose_sweep
from bestiary.config.overrides import expand
from bestiary.errors import ConfigError, Owner, UserError

BASE = ["task=addition", "model=tiny"]


def expanded(plugins, *words):
    return expand(list(words), Catalog(plugins))


def test_the_last_word_varies_fastest(plugins):
    assert expanded(plugins, "algorithm=grpo,remax", "seed=0,1", "steps=3") == [
        ["algorithm=grpo", "seed=0", "steps=3"],
        ["algorithm=grpo", "seed=1", "steps=3"],
        ["algorithm=remax", "seed=0", "steps=3"],
        ["algorithm=remax", "seed=1", "steps=3"],
    ]


@pytest.mark.parametrize(
    ("word", "values"),
    [
        ("seed=range(0,3)", ["0", "1", "2"]),
        ("train_engine.lr=choice(1e-4,1e-5)", ["0.0001", "1e-05"]),
        ("eval.samples=range(1,6,step=2)", ["1", "3", "5"]),
        ("tracker=[board],[wire],[]", ["[board]", "[wire]", "[]"]),
        ("train_engine.betas=[0.9,0.95],[0.9,0.99]", ["[0.9,0.95]", "[0.9,0.99]"]),
        ("name='a, b','c'", ["'a, b'", "'c'"]),
        ("seed=7", ["7"]),
        ("algorithm=glob(*)", ["grpo", "remax", "sft"]),
        ("algorithm=glob(*,exclude=s*)", ["grpo", "remax"]),
        ("algorithm=glob([g*,r*])", ["grpo", "remax"]),
        ("advantage=glob(*)", ["gae", "greedy", "group"]),
        ("model=glob(t*)", ["tiny"]),
    ],
)
def test_values_of_a_word(plugins, word, values):
    key = word.split("=")[0]
    assert expanded(plugins, word) == [[f"{key}={value}"] for value in values]


def test_conf_04_glob_sees_the_options_of_every_plugin(make_plugins):
    def register(registry):
        registry.algorithm(
            "zebra", target="zoo_algos.parts:Algo", options="zoo_algos.options:GrpoOptions"
        )

    plugins = make_plugins((Owner("extra", "zoo-extra", "3.1"), register))
    plans = compose_sweep(["algorithm=glob(*)", *BASE], None, plugins)
    assert [plan.choices["algorithm"] for plan in plans] == ["grpo", "remax", "sft", "zebra"]


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("algorithm=glob(x*)", "'algorithm=glob(x*)' matches nothing\n  -> options: grpo, remax,"),
        ("seed=glob(*)", "'seed=glob(*)': glob chooses among the options of a group, 'seed' is"),
        ("seed=interval(0,1)", "'seed=interval(0,1)': an interval has no list of values"),
        ("seed=range(3,3)", "'seed=range(3,3)' has no values"),
    ],
)  # fmt: skip
def test_sweeps_without_values_are_refused(plugins, word, message):
    with pytest.raises(ConfigError) as caught:
        expanded(plugins, word)
    assert str(caught.value).startswith(message)


def test_files_are_swept_as_well(plugins, tmp_path):
    folder = tmp_path / "experiment"
    folder.mkdir()
    for name, steps in (("a", 1), ("b", 2)):
        (folder / f"{name}.yaml").write_text(f"# @package _global_\nsteps: {steps}\n")
    words = ["algorithm=grpo", *BASE, "+experiment=glob(*)"]
    plans = compose_sweep(words, tmp_path, plugins)
    assert [plan.run.steps for plan in plans] == [1, 2]
    words[-1] = "+experiment=b,a"
    assert [plan.run.steps for plan in compose_sweep(words, tmp_path, plugins)] == [2, 1]


def test_one_wrong_run_refuses_the_whole_sweep_and_is_named(plugins):
    with pytest.raises(UserError) as caught:
        compose_sweep(["algorithm=grpo", *BASE, "algorithm.samples=4,1", "seed=0,1"], None, plugins)
    assert str(caught.value) == (
        "run 3 of 4 (algorithm.samples=1 seed=0): algorithm=grpo: samples=1: a group needs at "
        "least 2 responses [owner: algos (zoo-algos 2.0)]"
    )


def test_an_unknown_name_in_a_sweep_is_named_with_its_run(plugins):
    with pytest.raises(UserError, match=r"run 2 of 2 \(algorithm=rmax\): no algorithm 'rmax'"):
        compose_sweep(["algorithm=grpo,rmax", *BASE], None, plugins)
