"""Both splits of a task on their way into a run, and options on their way into components."""

import numpy as np
import pytest

from bestiary.config.schema import ModelOptions
from bestiary.errors import ConfigError, DataError, Owner
from bestiary.models.resolve import resolve_model
from bestiary.protocols import ComponentRef, Problem, Sampling
from bestiary.runtime.components import Components
from bestiary.runtime.prompts import load_prompts, with_task_limits

OWNER = Owner("mine", "bestiary-mine", "3.1")


class Numbers:
    reward, max_tokens, stop = "exact_match", 7, ("\n",)

    def __init__(self, train=range(20), held_out=range(20, 30)):
        self.splits = {"train": train, "eval": held_out}

    def problems(self, split):
        return [
            Problem(uid=f"{split}{n}", prompt=f"{n}=", answer=str(n)) for n in self.splits[split]
        ]


def load(task, **changes):
    folder = resolve_model("tiny:hidden=32,layers=1,heads=2")
    settings = {"seed": 0, "eval_problems": 4, **changes}
    return load_prompts(task, OWNER, folder, ModelOptions(path=str(folder)), **settings)


def test_held_out_problems_are_the_first_ones_in_the_order_of_the_task():
    found = load(Numbers())
    assert list(found.held_out["uid"]) == ["eval20", "eval21", "eval22", "eval23"]
    assert len(found.train) == 20
    assert (
        found.held_out["prompt_len"].tolist()
        == found.held_out.tokens("prompt_ids").lengths.tolist()
    )
    assert list(load(Numbers()).held_out["group_uid"]) == list(found.held_out["group_uid"])
    assert len(load(Numbers(), eval_problems=500).held_out) == 10


def test_a_held_out_problem_that_is_trained_on_is_an_error_with_its_owner():
    with pytest.raises(DataError, match="1 held-out problems occur in training") as caught:
        load(Numbers(held_out=[40, 5]))
    assert "'eval5'" in str(caught.value)
    assert "bestiary-mine 3.1" in str(caught.value)


@pytest.mark.parametrize("empty", ["train", "eval"])
def test_an_empty_split_is_named(empty):
    task = Numbers(**{"held_out" if empty == "eval" else "train": []})
    with pytest.raises(DataError, match=f"split '{empty}' is empty"):
        load(task)


def test_a_task_that_raises_is_attributed():
    class Broken(Numbers):
        def problems(self, split):
            raise OSError("no such file")

    with pytest.raises(DataError, match="no such file") as caught:
        load(Broken())
    assert caught.value.owner == OWNER


def test_the_task_fills_in_limit_and_stop_texts():
    samplings = (Sampling(n=2), Sampling(tag="b", stop=("END",)))
    filled = with_task_limits(samplings, Numbers(), None)
    assert [s.max_tokens for s in filled] == [7, 7]
    assert [s.stop for s in filled] == [("\n",), ("END",)]
    assert [s.max_tokens for s in with_task_limits(samplings, Numbers(), 3)] == [3, 3]
    assert [s.n for s in filled] == [2, 1]


def test_unknown_options_of_a_component_name_it_and_those_that_there_are(lab):
    components = Components(lab)
    with pytest.raises(ConfigError, match=r"loss=clip has no options \['clip_hi'\].*clip_high"):
        components.options(ComponentRef("loss", "clip", {"clip_hi": 0.3}))
    with pytest.raises(ConfigError, match="clip_low=7"):
        components.options(ComponentRef("loss", "clip", {"clip_low": 7}))


def test_a_loss_is_built_once_for_each_set_of_options(lab):
    components = Components(lab)
    first = components.loss(ComponentRef("loss", "clip", {"clip_low": 0.1, "clip_high": 0.3}))
    assert first is components.loss(
        ComponentRef("loss", "clip", {"clip_high": 0.3, "clip_low": 0.1})
    )
    assert first is not components.loss(ComponentRef("loss", "clip", {"clip_low": 0.1}))
    assert np.isclose(first.options.clip_high, 0.3)
