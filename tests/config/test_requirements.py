"""A column that is read and that nobody makes is an error at start."""

from uuid import uuid4

import pytest

from bestiary.config.compose import compose_run
from bestiary.errors import ConfigError, Owner, PluginError

ALGOS = "[owner: algos (zoo-algos 2.0)]"


def test_math_19_an_estimator_without_its_baseline_is_refused(run):
    with pytest.raises(ConfigError) as caught:
        run("advantage=greedy")
    assert str(caught.value) == (
        "advantage=greedy reads the column 'baseline_reward', which nobody makes: algorithm=grpo "
        f"has the roles actor, reward {ALGOS}\n  -> an algorithm makes it by a Sampling with "
        "tag='baseline'; choose another advantage or another algorithm"
    )


def test_math_19_a_baseline_sampling_provides_the_column(run):
    assert run("algorithm=remax").choices["advantage"] == "greedy"


def test_values_need_a_critic(run):
    with pytest.raises(ConfigError, match=r"advantage=gae reads the column 'values', which nobody"):
        run("advantage=gae")


def test_a_supervised_algorithm_has_no_use_for_an_estimator(run):
    with pytest.raises(ConfigError) as caught:
        run("algorithm=sft", "advantage=group")
    assert str(caught.value).startswith(
        "advantage=group has no effect: algorithm=sft uses no advantage"
    )


@pytest.fixture
def with_algorithm(make_plugins, tmp_path, monkeypatch):
    """Compose with an algorithm whose options class has a given body."""

    def compose(body, *words):
        module = f"zoo_made_{uuid4().hex}"
        (tmp_path / f"{module}.py").write_text(
            "from dataclasses import dataclass\nfrom typing import ClassVar\n"
            "from bestiary.protocols import *\n\n\n"
            "@dataclass(frozen=True, kw_only=True, slots=True)\n"
            f"class Options(AlgorithmOptions):\n{body}\n\n\n"
            "@dataclass(frozen=True, kw_only=True, slots=True)\n"
            "class Values(LossOptions):\n    outputs: ClassVar = frozenset({'values'})\n"
        )

        def register(registry):
            registry.algorithm("made", target=f"{module}:Options", options=f"{module}:Options")
            registry.loss("values", target=f"{module}:Values", options=f"{module}:Values")

        plugins = make_plugins((Owner("made", "zoo-made", "1"), register))
        base = ["algorithm=made", "task=addition", "model=tiny"]
        return compose_run([*base, *words], None, plugins)

    monkeypatch.syspath_prepend(str(tmp_path))
    return compose


USES = "    components: ClassVar = {'advantage': 'group', 'loss': 'clip'}\n"


def test_a_critic_provides_values(with_algorithm):
    roles = "(Role('actor'), Role('critic'), Role('reward', frozen=True))"
    plan = with_algorithm(USES + f"    def roles(self): return {roles}", "advantage=gae")
    assert plan.choices["advantage"] == "gae"


def test_a_role_of_kind_value_under_another_name_provides_values(with_algorithm):
    roles = "(Role('actor'), Role('judge', kind='value'), Role('reward', frozen=True))"
    assert with_algorithm(USES + f"    def roles(self): return {roles}", "advantage=gae")


def test_an_algorithm_may_say_that_it_provides_a_column(with_algorithm):
    body = (
        USES + "    def roles(self): return (Role('actor'), Role('reward', frozen=True))\n"
        "    def provides(self): return frozenset({'values'})"
    )
    assert with_algorithm(body, "advantage=gae")


def test_without_a_scorer_there_is_no_reward_to_estimate_from(with_algorithm):
    with pytest.raises(ConfigError, match="advantage=group reads the column 'reward'"):
        with_algorithm(USES + "    def roles(self): return (Role('actor'),)")


def test_a_loss_on_values_needs_a_value_head(with_algorithm):
    roles = "    def roles(self): return (Role('actor'), Role('reward', frozen=True))"
    with pytest.raises(ConfigError, match="loss=values needs the output of a value head"):
        with_algorithm(USES + roles, "loss=values")


def test_roles_that_train_nothing_are_refused(with_algorithm):
    with pytest.raises(PluginError, match="trains nothing: its roles actor are all frozen"):
        with_algorithm("    def roles(self): return (Role('actor', frozen=True),)")


def test_a_role_twice_is_refused(with_algorithm):
    with pytest.raises(PluginError, match="has the role 'actor' twice"):
        with_algorithm("    def roles(self): return (Role('actor'), Role('actor'))")


def test_roles_that_raise_are_the_owners_fault(with_algorithm):
    with pytest.raises(
        PluginError, match=r"asking algorithm=made for its roles failed: .*oops"
    ) as e:
        with_algorithm("    def roles(self): raise RuntimeError('oops')")
    assert e.value.owner.distribution == "zoo-made"


def test_a_component_for_an_unknown_group_is_the_owners_fault(with_algorithm):
    with pytest.raises(PluginError, match=r"for the group 'advantag'; did you mean 'advantage'\?"):
        with_algorithm("    components: ClassVar = {'advantag': 'group'}")


def test_a_missing_default_component_is_named_with_its_options(with_algorithm):
    with pytest.raises(PluginError, match=r"no advantage 'lost'.*group"):
        with_algorithm("    components: ClassVar = {'advantage': 'lost'}")


def test_an_option_called_defaults_is_refused(with_algorithm):
    with pytest.raises(PluginError, match="an option 'defaults', a word that Hydra keeps"):
        with_algorithm("    defaults: int = 3")
