"""Composition: defaults, precedence, files, and the plan that comes out."""

import json
import pickle
import subprocess
import sys
from dataclasses import FrozenInstanceError

import pytest

from bestiary.config.compose import compose_run
from bestiary.config.plan import RunPlan
from bestiary.errors import ConfigError, Owner, PluginError, UserError

DEMO = """\
# @package _global_
defaults:
  - override /algorithm: remax
  - override /task: addition
  - override /model: small
  - override /tracker: [board, wire]
steps: 7
train_engine:
  lr: 1e-4
tracker:
  board:
    project: p
"""


@pytest.fixture
def configs(tmp_path):
    """A config folder; call it to add files."""

    def add(**files):
        for name, text in files.items():
            path = tmp_path / "configs" / f"{name.replace('__', '/')}.yaml"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path / "configs"

    add(experiment__demo=DEMO, model__small="path: /models/small\ndtype: bf16\n")
    return add


def test_defaults_come_from_the_options_classes_and_the_algorithm(run):
    plan = run()
    assert plan.choices == {
        "algorithm": "grpo",
        "advantage": "group",
        "loss": "clip",
        "task": "addition",
        "reward": "exact",
        "cost": "task",
        "correction": "none",
        "model": "tiny",
        "sampler": "uniform",
        "rollout_engine": "local",
        "train_engine": "fsdp",
        "schedule": "sync",
        "placement": "colocate",
    }
    assert plan.options["loss"].clip_range == 0.2
    assert plan.options["train_engine"].betas == (0.9, 0.95)
    assert plan.options["task"].template == "What is ${a} + ${b}?"
    assert plan.model.source().startswith("tiny:arch=llama,hidden=128,layers=4")
    assert plan.trackers == {}
    assert [role.name for role in plan.roles] == ["actor", "reward"]
    assert plan.samplings[0].n == 8


def test_values_reach_the_frozen_options_with_their_types(run):
    plan = run(
        "train_engine.lr=1",
        "train_engine.betas=[0.5,1]",
        "train_engine.clip=null",
        "train_engine.decay.kind=linear",
        "train_engine.extra={a:[1,x]}",
        "rollout_engine.stop=[a,'b c']",
        "loss.clip_range=inf",
        "name=123",
    )
    engine = plan.options["train_engine"]
    assert (engine.lr, type(engine.lr)) == (1.0, float)
    assert engine.betas == (0.5, 1.0)
    assert engine.clip is None
    assert engine.decay.kind == "linear"
    assert engine.extra == {"a": [1, "x"]}
    assert plan.options["rollout_engine"].stop == ("a", "b c")
    assert plan.options["loss"].clip_range == float("inf")
    assert plan.run.name == "123"
    with pytest.raises(FrozenInstanceError):
        engine.lr = 2.0


def test_the_command_line_wins_over_the_algorithms_own_choice(run):
    assert run("algorithm=remax").choices["advantage"] == "greedy"
    assert run("algorithm=remax", "advantage=group").choices["advantage"] == "group"


def test_reward_task_is_the_tasks_own_and_another_can_be_chosen(run):
    assert run().choices["reward"] == "exact"
    assert run("reward=exact", "reward.strip=false").options["reward"].strip is False


def test_trackers_are_any_number_of_choices(run):
    plan = run("tracker=[board,wire]", "tracker.board.project=mine")
    assert list(plan.trackers) == ["board", "wire"]
    assert plan.trackers["board"].project == "mine"
    assert list(run("tracker=wire").trackers) == ["wire"]


def test_a_supervised_algorithm_drops_the_default_warm_start_only(run):
    assert run().model.warm_start.algorithm == "sft"
    assert run("algorithm=sft").model.warm_start is None
    assert run("algorithm=sft", "model.warm_start.steps=5").model.warm_start.steps == 5
    assert run("model.warm_start=null").model.warm_start is None


def test_an_experiment_file_chooses_and_sets(run, configs):
    plan = run("+experiment=demo", "seed=3", config_dir=configs(), bare=True)
    assert plan.choices["algorithm"] == "remax"
    assert plan.choices["model"] == "small"
    assert plan.model.path == "/models/small"
    assert plan.model.dtype == "bf16"
    assert plan.run.steps == 7
    assert plan.run.seed == 3
    assert plan.options["train_engine"].lr == 1e-4
    assert plan.trackers["board"].project == "p"


def test_the_command_line_wins_over_an_experiment_file(run, configs):
    plan = run(
        "+experiment=demo", "algorithm=grpo", "steps=9", "tracker=[wire]",
        config_dir=configs(experiment__demo=DEMO.split("tracker:\n  board")[0]), bare=True,
    )  # fmt: skip
    assert plan.choices["algorithm"] == "grpo"
    assert plan.choices["advantage"] == "group"
    assert plan.run.steps == 9
    assert list(plan.trackers) == ["wire"]


def test_a_folder_with_the_name_of_a_section_holds_files_and_the_section_stays(run, configs):
    folder = configs(cluster__four="# @package _global_\ncluster:\n  num_cpus: 4\n")
    plan = run("+cluster=four", "cluster.object_store_mb=100", config_dir=folder)
    assert plan.run.cluster.num_cpus == 4
    assert plan.run.cluster.object_store_mb == 100


FILE_MISTAKES = {
    "a: 1\n": "the settings of a file are under 'experiment' and would have no effect "
    "(from +experiment=bad)\n  -> start the file with the line `# @package _global_`",
    "# @package _global_\nstps: 3\n": "there is no setting 'stps'; did you mean 'steps'? "
    "(from +experiment=bad)",
    "# @package _global_\nloss:\n  clip_rnge: 3\n": "loss=clip has no option 'clip_rnge'; did you "
    "mean 'loss.clip_range'? (from +experiment=bad) [owner: algos (zoo-algos 2.0)]",
    "# @package _global_\nalgorithm:\n  name: remax\n": "'algorithm.name': a choice is written "
    "with the group alone; did you mean 'algorithm=remax'? (from +experiment=bad)",
    "# @package _global_\ndefaults:\n  - override /sampler: unform\n": "no sampler 'unform'; did "
    "you mean 'uniform'? There are: uniform (zoo-basics 1.0)",
    "# @package _global_\nname: [\n": "a YAML file cannot be read: while parsing",
    "# @package _global_\nloss: 3\n": "loss=3: the options of loss=clip are wanted",
}


@pytest.mark.parametrize("text", FILE_MISTAKES)
def test_a_mistake_in_a_file_is_named_with_the_file(run, configs, text):
    with pytest.raises(UserError) as caught:
        run("+experiment=bad", config_dir=configs(experiment__bad=text))
    assert str(caught.value).startswith(FILE_MISTAKES[text])


def test_a_misspelt_file_and_a_missing_plus_are_named(run, configs):
    with pytest.raises(ConfigError, match=r"did you mean '\+experiment=demo'\?"):
        run("+experiment=dem", config_dir=configs())
    with pytest.raises(ConfigError, match=r"with a plus; did you mean '\+experiment=demo'\?"):
        run("experiment=demo", config_dir=configs())
    with pytest.raises(ConfigError, match="there is no such folder"):
        run(config_dir=configs() / "nowhere")


def test_files_may_not_hide_options_of_packages(run, configs):
    with pytest.raises(ConfigError, match="options of the group 'loss' come from packages"):
        run(config_dir=configs(loss__mine="clip_range: 3\n"))


def test_a_model_file_may_not_take_a_name_of_core(run, configs):
    with pytest.raises(ConfigError, match=r"model=tiny stands in the package bestiary and in"):
        run(config_dir=configs(model__tiny="path: x\n"))


def test_a_plan_survives_json_exactly(run, configs, plugins):
    plan = run(
        "+experiment=demo", "loss.clip_range=inf", "train_engine.extra={a:[1,x]}",
        config_dir=configs(), bare=True,
    )  # fmt: skip
    text = json.dumps(plan.to_json(), allow_nan=False)
    assert RunPlan.from_json(text, plugins) == plan
    assert RunPlan.from_json(json.loads(text), plugins).to_json() == plan.to_json()
    assert pickle.loads(pickle.dumps(plan)) == plan


def test_a_saved_plan_is_checked_when_it_is_read(run, plugins):
    data = run().to_json()
    data["options"]["train_engine"]["lr"] = "fast"
    with pytest.raises(ConfigError, match=r"train_engine.lr='fast': wanted a number"):
        RunPlan.from_json(data, plugins)
    with pytest.raises(ConfigError, match="has format 99, wanted 1"):
        RunPlan.from_json({**data, "format": 99}, plugins)


def test_a_reference_rebuilds_the_options_from_field_values(run):
    plan = run("rollout_engine.stop=[a]")
    ref = plan.reference("rollout_engine")
    assert (ref.kind, ref.name) == ("rollout_engine", "local")
    assert type(plan.options["rollout_engine"])(**ref.options) == plan.options["rollout_engine"]


def test_a_qualified_name_chooses_between_two_owners(make_plugins):
    def register(registry):
        registry.sampler("uniform", target="zoo_basics.parts:Part")

    plugins = make_plugins((Owner("other", "zoo-other", "1"), register))
    base = ["algorithm=grpo", "task=addition", "model=tiny"]
    with pytest.raises(PluginError, match="several owners"):
        compose_run(base, plugins=plugins)
    plan = compose_run([*base, "sampler=zoo-basics:uniform", "sampler.mode=replace"], None, plugins)
    assert plan.choices["sampler"] == "zoo-basics:uniform"
    assert plan.options["sampler"].mode == "replace"
    assert RunPlan.from_json(plan.to_json(), plugins) == plan


def test_a_broken_options_module_hurts_only_who_chooses_it(make_plugins):
    def register(registry):
        registry.algorithm("broken", target="no_such.mod:A", options="no_such.options:B")

    plugins = make_plugins((Owner("bad", "zoo-bad", "0"), register))
    assert compose_run(["algorithm=grpo", "task=addition", "model=tiny"], plugins=plugins)
    with pytest.raises(PluginError, match=r"no_such.*\[owner: bad \(zoo-bad 0\)\]"):
        compose_run(["algorithm=broken", "task=addition", "model=tiny"], plugins=plugins)


def test_composing_imports_no_torch_and_no_component_that_was_not_asked():
    code = (
        "import sys; sys.path[:0] = sys.argv[1:]\n"
        "from conftest import closed_set\n"
        "from bestiary.config.compose import compose_run\n"
        "words = ['algorithm=grpo', 'task=addition', 'reward=exact', 'model=tiny']\n"
        "compose_run(words, None, closed_set())\n"
        "print(sorted({'torch', 'ray', 'transformers', 'zoo_algos.parts', 'zoo_basics.parts'}"
        " & set(sys.modules)))\n"
    )
    from pathlib import Path

    here = Path(__file__).parent
    done = subprocess.run(
        [sys.executable, "-c", code, str(here), str(here / "dists")],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == "[]"


def test_composing_twice_leaves_no_state_behind(run, configs):
    from hydra.core.global_hydra import GlobalHydra

    first = run()
    with pytest.raises(ConfigError):
        run("sed=1")
    assert run("+experiment=demo", config_dir=configs(), bare=True).run.steps == 7
    assert run() == first
    assert not GlobalHydra().is_initialized()


def test_a_configuration_package_of_a_plugin_brings_experiments(
    make_plugins, tmp_path, monkeypatch
):
    package = tmp_path / "zoo_conf" / "experiment"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").write_text("")
    (package / "brought.yaml").write_text("# @package _global_\nsteps: 11\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    plugins = make_plugins()
    monkeypatch.setattr(
        type(plugins), "config_packages", lambda self: [("zoo_conf", Owner("c", "zoo-c", "1"))]
    )
    words = ["algorithm=grpo", "task=addition", "model=tiny", "+experiment=brought"]
    assert compose_run(words, None, plugins).run.steps == 11
    other = tmp_path / "configs" / "experiment"
    other.mkdir(parents=True)
    (other / "brought.yaml").write_text("# @package _global_\nsteps: 12\n")
    with pytest.raises(ConfigError, match=r"experiment=brought stands in .* and in .*zoo_conf"):
        compose_run(words, tmp_path / "configs", plugins)
