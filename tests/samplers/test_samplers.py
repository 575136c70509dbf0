import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bestiary.batch import Batch, row_key
from bestiary.data.source import PromptSource
from bestiary.plugins.manager import load_plugins
from bestiary.protocols import Problem, Sampler
from bestiary_samplers.curriculum import Curriculum
from bestiary_samplers.dynamic import Dynamic
from bestiary_samplers.options import CurriculumOptions, DynamicOptions, UniformOptions
from bestiary_samplers.uniform import Uniform


class Letters:
    def render(self, prompt, chat_template="auto"):
        return prompt

    def encode_prompt(self, prompt, chat_template="auto"):
        return [ord(c) for c in prompt]

    def encode_target(self, text):
        return [ord(c) for c in text]


def source(n=10, seed=0):
    return PromptSource(
        [Problem(uid=f"u{i}", prompt=f"q{i}") for i in range(n)], Letters(), seed=seed
    )


def groups(*rewards, valid=None, trainable=None, uids=None):
    """Rows of several groups, interleaved as they come from several workers."""
    rows = [(g, i, r) for g, group in enumerate(rewards) for i, r in enumerate(group)]
    rows.sort(key=lambda row: row[1])
    table = {
        "row_key": np.array([row_key(g, i) for g, i, _ in rows], dtype=np.uint64),
        "group_uid": np.array([f"g{g}" for g, _, _ in rows], dtype=object),
        "uid": np.array([uids[g] if uids else f"u{g}" for g, _, _ in rows], dtype=object),
        "reward": np.array([r for _, _, r in rows], dtype=np.float64),
        "valid": np.array([(valid or {}).get((g, i), True) for g, i, _ in rows]),
        "trainable": np.array([(trainable or {}).get((g, i), True) for g, i, _ in rows]),
        "response_len": np.array([3 + i for _, i, _ in rows]),
    }
    return Batch(table)


SAMPLERS = {
    "uniform": (Uniform, UniformOptions),
    "dynamic": (Dynamic, DynamicOptions),
    "curriculum": (Curriculum, CurriculumOptions),
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_each_sampler_comes_through_the_plugin_door(name):
    made = load_plugins().registry.get("sampler", name).build(None, source())
    assert isinstance(made, Sampler)
    assert len(made.draw(3)) == 3


@pytest.mark.parametrize("name", SAMPLERS)
def test_without_observations_an_epoch_has_each_prompt_once(name):
    target, options = SAMPLERS[name]
    sampler = target(options(), source(10, seed=4))
    drawn = [uid for n in (4, 3, 3) for uid in sampler.draw(n)["uid"]]
    assert sorted(drawn) == sorted(f"u{i}" for i in range(10))
    assert set(sampler.draw(10)["draw"]) == {1}


@pytest.mark.parametrize("name", SAMPLERS)
def test_the_order_depends_on_the_seed_of_the_run(name):
    target, options = SAMPLERS[name]
    draws = [target(options(), source(30, seed)).draw(30)["uid"].tolist() for seed in (1, 1, 2)]
    assert draws[0] == draws[1] != draws[2]


@settings(max_examples=40, deadline=None)
@given(
    name=st.sampled_from(sorted(SAMPLERS)),
    steps=st.lists(
        st.tuples(st.integers(1, 6), st.lists(st.integers(0, 1), min_size=12, max_size=12)),
        max_size=8,
    ),
    cut=st.integers(0, 8),
)
def test_res01_a_resumed_sampler_goes_on_exactly(name, steps, cut):
    """RES-01 for every sampler: its state, through JSON, and the source's."""

    def step(sampler, n, rewards):
        drawn = sampler.draw(n)
        uids = drawn["uid"].tolist()
        batch = groups(*[rewards[2 * g : 2 * g + 2] for g in range(n)], uids=uids)
        kept, more = sampler.accept(batch)
        if not more:
            sampler.observe(kept)
        return drawn["group_uid"].tolist(), len(kept), more

    def fresh():
        target, options = SAMPLERS[name]
        return target(options(), source(7, seed=3))

    whole = fresh()
    expected = [step(whole, *s) for s in steps]
    first = fresh()
    got = [step(first, *s) for s in steps[:cut]]
    second = fresh()
    second.source.load_state_dict(json.loads(json.dumps(first.source.state_dict())))
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    got += [step(second, *s) for s in steps[cut:]]
    assert got == expected


def test_uniform_keeps_everything_and_may_leave_the_order_alone():
    sampler = Uniform(UniformOptions(shuffle=False), source(3))
    assert sampler.draw(4)["uid"].tolist() == ["u0", "u1", "u2", "u0"]
    batch = groups([1, 1], [0, 1])
    kept, more = sampler.accept(batch)
    assert (len(kept), more) == (4, 0)


def test_dynamic_drops_groups_without_a_difference_and_refills_them():
    sampler = Dynamic(DynamicOptions(), source())
    kept, more = sampler.accept(groups([1, 1, 1], [0, 1, 0], [0, 0, 0], [0.5, 0.25, 0.5]))
    assert more == 2
    assert sorted(set(kept["group_uid"])) == ["g1", "g3"]
    assert len(kept) == 6
    sampler.observe(kept)
    assert sampler.metrics() == {
        "sampler/judged": 4.0,
        "sampler/dropped": 2.0,
        "sampler/dropped_tokens": 2 * (3 + 4 + 5),
        "sampler/given_up": 0.0,
        "sampler/reward": pytest.approx((3 + 1 + 0 + 1.25) / 12),
    }


def test_dynamic_judges_by_valid_trainable_rows_only():
    sampler = Dynamic(DynamicOptions(), source())
    batch = groups(
        [1, 1, 0],  # the 0 is invalid
        [0, 0, 1],  # the 1 is a greedy baseline
        [1, 0],  # nothing valid at all
        [1, 0, 1],
        valid={(0, 2): False, (2, 0): False, (2, 1): False},
        trainable={(1, 2): False, (3, 2): False},
    )
    kept, more = sampler.accept(batch)
    assert more == 3
    assert set(kept["group_uid"]) == {"g3"}
    assert len(kept) == 3  # the baseline row stays with its group


def test_dynamic_gives_up_after_its_rounds_and_starts_anew_after_the_step():
    sampler = Dynamic(DynamicOptions(max_rounds=2), source())
    assert sampler.accept(groups([1, 0], [1, 1]))[1] == 1
    kept, more = sampler.accept(groups([1, 1]))
    assert (len(kept), more) == (0, 0)  # a short step: one group is there already
    sampler.observe(groups([1, 0]))
    assert sampler.accept(groups([1, 1]))[1] == 1
    kept, more = sampler.accept(groups([1, 1]))
    assert (len(kept), more) == (2, 0)  # nothing was kept at all: these, with advantages of 0
    assert sampler.metrics()["sampler/given_up"] == 2.0


def test_curriculum_skips_solved_and_hopeless_prompts_until_it_retries():
    sampler = Curriculum(CurriculumOptions(retry_epochs=2), source(4))
    sampler.draw(4)
    sampler.observe(groups([1, 1], [0, 0], [1, 0], [0, 1]))
    assert sampler.seen["u0"].rate == 1.0
    assert sampler.seen["u1"].rate == 0.0
    drawn = {1: set(), 2: set(), 3: set()}
    while sampler.order.epoch < 3:
        uid = sampler.draw(1)["uid"][0]
        drawn[sampler.order.epoch].add(uid)
    assert drawn[1] == {"u2", "u3"}
    assert drawn[2] == {"u0", "u1", "u2", "u3"}


def test_curriculum_estimates_decay_and_ignore_invalid_and_baseline_rows():
    sampler = Curriculum(CurriculumOptions(decay=0.75), source(2))
    sampler.observe(groups([1, 0]))
    sampler.observe(groups([1, 1, 0, 0], valid={(0, 2): False}, trainable={(0, 3): False}))
    assert sampler.seen["u0"].rate == pytest.approx(0.75 * 0.5 + 0.25 * 1.0)
    assert "u1" not in sampler.seen


def test_curriculum_always_draws_what_it_is_asked_for():
    sampler = Curriculum(CurriculumOptions(retry_epochs=1000), source(3))
    sampler.observe(groups([1, 1], [1, 1], [1, 1]))
    for n in (1, 2, 3, 7):
        assert len(sampler.draw(n)) == n


@pytest.mark.parametrize(
    ("options", "values"),
    [
        (DynamicOptions, {"max_rounds": 0}),
        (CurriculumOptions, {"low": 0.9, "high": 0.1}),
        (CurriculumOptions, {"decay": 1.0}),
        (CurriculumOptions, {"retry_epochs": 0}),
    ],
)
def test_options_out_of_range_are_refused(options, values):
    with pytest.raises(ValueError, match=r"=.*:"):
        options(**values)
