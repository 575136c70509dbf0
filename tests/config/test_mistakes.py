"""Every mistake is one error that names the right way; this table is the contract."""

import pytest

from bestiary.errors import EXIT_USER, UserError

ALGOS = "[owner: algos (zoo-algos 2.0)]"
BASICS = "[owner: basics (zoo-basics 1.0)]"
ALGORITHMS = "grpo (zoo-algos 2.0), remax (zoo-algos 2.0), sft (zoo-algos 2.0)"
ROOT = (
    "seed, steps, run_dir, name, deterministic, resume, max_seconds, residency, timeout_s, "
    "display, eval, checkpoint, cluster, algorithm, advantage, loss, task, reward, cost, "
    "correction, model, sampler, rollout_engine, train_engine, schedule, placement, tracker"
)
CLIP_TYPO = (
    f"loss=clip has no option 'clip_rnge'; did you mean 'loss.clip_range'? {ALGOS}\n"
    "  -> options of loss=clip: clip_range"
)
DOTTED = (
    ": a choice is written with the group alone; did you mean 'algorithm=remax'?\n"
    f"  -> options of algorithm: {ALGORITHMS}"
)

MISTAKES = {
    # keys
    "loss.clip_rnge=0.5": CLIP_TYPO,
    "+loss.clip_rnge=0.5": CLIP_TYPO,
    "++loss.clip_rnge=0.5": CLIP_TYPO,
    "sed=1": "'sed=1': there is no setting 'sed'; did you mean 'seed'?\n"
    f"  -> settings and groups: {ROOT}; see bestiary train --info",
    "+sed=1": "'+sed=1': there is no setting 'sed'; did you mean 'seed'?\n"
    f"  -> settings and groups: {ROOT}; see bestiary train --info",
    "eval.evry=3": "eval has no option 'evry'; did you mean 'eval.every'?\n"
    "  -> options of eval: every, problems, samples, greedy, at_start",
    "train_engine.decay.warm=3": "train_engine.decay has no option 'warm'; did you mean "
    f"'train_engine.decay.warmup'? {BASICS}\n"
    "  -> options of train_engine.decay: kind, warmup",
    "reward.strip=false": "reward=task has no option 'strip' [owner: core (bestiary VERSION)]\n"
    "  -> reward=task takes no options. The reward that the task declares for itself. Choose "
    "another with reward=NAME: task, exact (zoo-basics 1.0)",
    "~seed": "'~seed': nothing can be taken out of the configuration\n"
    "  -> set it instead: seed=VALUE",
    "~tracker": "'~tracker': nothing can be taken out of the configuration\n"
    "  -> tracker=[] chooses no tracker",
    "hydra.run.dir=x": "'hydra.run.dir=x': Hydra's own settings have no effect here\n"
    "  -> the run's folder is run_dir=PATH; sweeps are -m with key=a,b",
    # choices
    "algorithm.remax=1": "'algorithm.remax'" + DOTTED,
    "algorithm.name=remax": "'algorithm.name'" + DOTTED,
    "algorithm.remax": "'algorithm.remax' is not a setting: key=value is wanted\n"
    "  -> did you mean algorithm=remax?",
    "remax": "'remax' is not a setting: key=value is wanted\n  -> did you mean algorithm=remax?",
    "algorithm/remax=1": "'algorithm/remax=1': a choice is written algorithm=NAME; did you mean "
    f"'algorithm=remax'?\n  -> options of algorithm: {ALGORITHMS}",
    "algorithm=rmax": "no algorithm 'rmax'; did you mean 'remax'? There are: "
    f"{ALGORITHMS}\n  -> see `bestiary plugins`",
    "+algorithm=remax": "'+algorithm=remax': every run has the group 'algorithm'; did you mean "
    "'algorithm=remax'?\n  -> + is for files only, as in +experiment=NAME",
    "algorithm@x=grpo": "'algorithm@x=grpo': a choice cannot be moved to another place\n"
    "  -> write algorithm=NAME",
    "algorithm={a:1}": "'algorithm={a:1}': a name from the group 'algorithm' is wanted\n"
    f"  -> algorithm=NAME; options: {ALGORITHMS}",
    "sampler=[uniform]": "'sampler=[uniform]': the group 'sampler' takes one choice, not a list\n"
    "  -> several runs: -m sampler=a,b",
    "advantage=null": "'advantage=null': a name is wanted; did you mean 'advantage=none'?",
    "model=smolm2": "no model 'smolm2'; did you mean 'smollm2'?\n"
    "  -> there are: tiny, smollm2, hf; any other model: model=hf model.path=smolm2",
    "tracker=[board,wires]": "no tracker 'wires'; did you mean 'wire'? There are: "
    "board (zoo-basics 1.0), wire (zoo-basics 1.0)\n  -> see `bestiary plugins`",
    "tracker.board.project=x": "tracker.board is set, but the tracker 'board' is not chosen\n"
    "  -> add tracker=[board]; trackers: board (zoo-basics 1.0), wire (zoo-basics 1.0)",
    "algorithm=grpo,remax": "'algorithm=grpo,remax' means several runs\n"
    "  -> add -m to run them all; for one list value write key=[a,b]",
    "+experiment=demo": "'+experiment=demo': no --config-dir was given\n"
    "  -> add --config-dir DIR, the folder that holds experiment/",
    # types and ranges
    "train_engine.lr=high": f"train_engine.lr='high': wanted a number {BASICS}",
    "train_engine.lr=-1": "train_engine.lr=-1.0: must be above 0 " + BASICS,
    "algorithm.samples=1": "algorithm=grpo: samples=1: a group needs at least 2 responses " + ALGOS,
    "seed=1.5": "seed=1.5: wanted a whole number",
    "seed=true": "seed=true: wanted a whole number",
    "seed=-1": "seed=-1: must be at least 0",
    "seed.x=5": "seed={'x': 5}: wanted a whole number",
    "deterministic=1": "deterministic=1: wanted true or false",
    "name=true": "name=true: wanted text\n  -> to give it as text, quote it: name=\\'true\\'",
    "display=rch": "display='rch': wanted one of auto, rich, plain, none; did you mean 'rich'?",
    "eval=5": "eval=5: wanted a section with the keys every, problems, samples, greedy, at_start\n"
    "  -> set its keys one by one, as in eval.KEY=VALUE",
    "eval.samples=-1": "eval.samples=-1: must be at least 0",
    "train_engine.betas=[1]": "train_engine.betas=[1]: wanted a list [a number, a number] "
    f"{BASICS}\n  -> write a list with brackets: train_engine.betas=[a,b]",
    "rollout_engine.stop=[1.5]": f"rollout_engine.stop[0]=1.5: wanted text {BASICS}\n"
    "  -> to give it as text, quote it: rollout_engine.stop[0]=\\'1.5\\'",
    "train_engine.decay.kind=lin": "train_engine.decay.kind='lin': wanted one of constant, "
    f"linear; did you mean 'linear'? {BASICS}",
    "model=hf": "model.path must be given (model=hf wants text) [owner: core (bestiary VERSION)]\n"
    "  -> add model.path=VALUE",
    "model.path=x": "model.path=x: a tiny model has no path; use model=hf, or set "
    "sizes by model.hidden and the like [owner: core (bestiary VERSION)]",
    "name=${oc.env:NO_SUCH_VARIABLE}": "the configuration cannot be composed: KeyError raised "
    "while resolving interpolation: \"Environment variable 'NO_SUCH_VARIABLE' not found\"; "
    "full_key: name; object_type=dict",
    # combinations
    "advantage=none": "algorithm=grpo needs a component of the group 'advantage', advantage=none "
    f"is none {ALGOS}\n  -> its default is advantage=group",
    "task=riddles": f"task=riddles declares no reward of its own {BASICS}\n"
    "  -> add reward=NAME; options: task, exact (zoo-basics 1.0)",
}


@pytest.mark.parametrize("word", MISTAKES)
def test_a_mistake_is_one_error_with_the_right_way(run, word):
    import bestiary

    with pytest.raises(UserError) as caught:
        run(word)
    assert str(caught.value) == MISTAKES[word].replace("VERSION", bestiary.__version__)
    assert caught.value.exit_code == EXIT_USER


def test_conf_01_a_plus_does_not_let_a_typo_through(run):
    for word in ("loss.clip_rnge=0.5", "+loss.clip_rnge=0.5"):
        with pytest.raises(UserError, match=r"'clip_rnge'; did you mean 'loss.clip_range'"):
            run(word)
    assert run("+loss.clip_range=0.5").options["loss"].clip_range == 0.5


def test_conf_04_an_unknown_option_lists_those_of_plugins_with_their_packages(make_plugins):
    from bestiary.config.compose import compose_run
    from bestiary.errors import Owner

    def register(registry):
        registry.algorithm("zebra", target="zoo_algos.parts:Algo")

    plugins = make_plugins((Owner("extra", "zoo-extra", "3.1"), register))
    with pytest.raises(UserError) as caught:
        compose_run(["algorithm=grppo", "task=addition", "model=tiny"], plugins=plugins)
    assert "grpo (zoo-algos 2.0)" in str(caught.value)
    assert "zebra (zoo-extra 3.1)" in str(caught.value)


def test_without_a_choice_the_options_are_listed(run):
    with pytest.raises(UserError) as caught:
        run(bare=True)
    assert str(caught.value) == (
        f"no algorithm is chosen\n  -> add algorithm=NAME; options: {ALGORITHMS}"
    )


def test_a_dotted_choice_is_seen_also_when_nothing_else_is_chosen(run):
    with pytest.raises(UserError, match=r"did you mean 'algorithm=grpo'\?"):
        run("algorithm.grpo=1", bare=True)


def test_a_lost_default_says_so(make_plugins):
    from pluggy import PluginManager

    from bestiary.config.compose import compose_run
    from bestiary.plugins.discovery import Selection
    from bestiary.plugins.manager import PluginSet
    from bestiary.plugins.registry import Registry

    full = make_plugins().registry
    registry = Registry()
    for component in full.components():
        if component.kind != "schedule":
            with registry.owned_by(component.owner):
                register = getattr(registry, component.kind)
                register(component.name, target=component.target, options=component.options)
    plugins = PluginSet(PluginManager("bestiary"), registry, Selection({}, None, ()), ())
    with pytest.raises(UserError, match=r"the default, 'sync', is not installed or blocked"):
        compose_run(["algorithm=grpo", "task=addition", "model=tiny"], plugins=plugins)
