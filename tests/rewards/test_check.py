import math

import numpy as np
import pytest
import torch

from bestiary.errors import Owner, RewardError
from bestiary.protocols import Sample, Score
from bestiary.rewards.check import check_scores

OWNER = Owner("mine", "my-dist", "1.0")
SAMPLES = [Sample(f"u{i}", "p", "r", "a", 5, False) for i in range(4)]


def values(returned):
    return [c.value for c in check_scores(returned, SAMPLES, "f")]


def test_rew03_one_entry_for_four_samples_is_refused():
    """REW-03: [1.0] for 4 samples is never broadcast."""
    with pytest.raises(RewardError, match="'my_reward' returned 1 scores, expected 4") as caught:
        check_scores([1.0], SAMPLES, "my_reward", OWNER)
    assert caught.value.owner == OWNER


def test_rew03_another_wrong_length_names_the_function():
    with pytest.raises(RewardError, match="'my_reward' returned 3 scores, expected 4"):
        check_scores([1, 0, 1], SAMPLES, "my_reward")


def test_rew03_the_right_length_is_accepted():
    assert values([1, 0, 1, 1]) == [1.0, 0.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("bare", "kind"),
    [
        (1.0, "float"),
        (True, "bool"),
        (None, "NoneType"),
        ("1111", "str"),
        ({"a": 1}, "dict"),
        (np.float32(1), "float"),
        (torch.tensor(1.0), "float"),
        (Score(1.0), "Score"),
        (object(), "object"),
    ],
)
def test_rew03_a_bare_value_is_refused(bare, kind):
    with pytest.raises(RewardError, match=f"returned a single {kind}, expected a list of 4"):
        check_scores(bare, SAMPLES, "f")


@pytest.mark.parametrize(
    "returned",
    [
        (1, 0, 1, 1),
        np.array([1, 0, 1, 1], dtype=np.float32),
        torch.tensor([1.0, 0.0, 1.0, 1.0]),
        [True, False, True, True],
        [np.float64(1), np.int64(0), torch.tensor(1), torch.tensor([1])],
        [Score(1), Score(0), 1, Score(1.0)],
        (float(x) for x in (1, 0, 1, 1)),
    ],
)
def test_all_usual_kinds_of_sequences_are_read(returned):
    assert values(returned) == [1.0, 0.0, 1.0, 1.0]


def test_rew04_none_and_nan_are_invalid_and_not_zero():
    """REW-04: a missing reward is marked; it is neither NaN nor a bad answer."""
    checked = check_scores([1, None, float("nan"), Score(math.nan)], SAMPLES, "f")
    assert [c.valid for c in checked] == [True, False, False, False]
    assert [c.value for c in checked] == [1.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("1", "sample 2 .u2.: score is a str"),
        (np.array([1.0, 2.0]), "sample 2 .u2.: score is a ndarray"),
        (math.inf, "sample 2 .u2.: score is infinite"),
        (Score(1.0, {"a": "x"}), "sample 2 .u2.: part 'a' is a str"),
        (Score(1.0, spans=((0, 6, 1.0),)), r"span \(0, 6\) is not within its 5 tokens"),
        (Score(1.0, spans=((2, 2, 1.0),)), r"span \(2, 2\) is not within"),
    ],
)
def test_an_entry_that_is_no_score_is_named(entry, message):
    with pytest.raises(
        RewardError, match=f"reward 'f', {message}" if message.startswith("sample") else message
    ):
        check_scores([1, 0, entry, 1], SAMPLES, "f")


def test_parts_and_spans_come_along():
    checked = check_scores([Score(1.0, {"form": 1}, ((0, 5, 0.5),))] * 4, SAMPLES, "f")
    assert checked[0].parts == {"form": 1.0}
    assert checked[0].spans == ((0, 5, 0.5),)
