import threading
import time

import pytest

from bestiary.errors import Owner, RewardError
from bestiary.protocols import Sample
from bestiary.rewards.calling import DirectScorer, within
from bestiary.rewards.loading import LoadedReward

SAMPLES = [Sample(f"u{i}", "p", "r", "a", 3, False) for i in range(3)]
OWNER = Owner("mine", "my-dist", "1.0")


def scorer(function, limit_s=0.0):
    return DirectScorer(LoadedReward("my_reward", function, OWNER), limit_s)


def test_scores_come_back_checked():
    assert [c.value for c in scorer(lambda s: [1, 2, 3])(SAMPLES)] == [1.0, 2.0, 3.0]


def test_an_empty_batch_does_not_call_the_function():
    def fail(samples):
        raise AssertionError("called")

    assert scorer(fail)([]) == []


@pytest.mark.parametrize("limit_s", [0.0, 30.0])
def test_an_exception_names_function_first_sample_and_owner(limit_s):
    def fail(samples):
        raise KeyError("gold")

    with pytest.raises(RewardError) as caught:
        scorer(fail, limit_s)(SAMPLES)
    text = str(caught.value)
    assert "calling reward 'my_reward' on 3 samples (the first is u0)" in text
    assert "KeyError: 'gold'" in text
    assert "my-dist 1.0" in text
    assert isinstance(caught.value.__cause__, KeyError)


def test_an_exception_inside_a_generator_is_attributed_too():
    def lazy(samples):
        yield 1.0
        raise ValueError("late")

    with pytest.raises(RewardError, match=r"calling reward 'my_reward' .*ValueError: late"):
        scorer(lazy)(SAMPLES)


def test_rew02_a_function_that_never_ends_is_given_up_by_name():
    """REW-02 (the limit of a batch): the caller goes on, and the message names the function."""
    release = threading.Event()

    def hang(samples):
        release.wait(60)
        return [1.0] * len(samples)

    start = time.monotonic()
    with pytest.raises(RewardError, match=r"reward 'my_reward'.*longer than its limit of 0\.2 s"):
        scorer(hang, 0.2)(SAMPLES)
    assert time.monotonic() - start < 10
    release.set()


def test_a_result_within_the_limit_is_returned():
    assert within(30.0, lambda: 7, "x") == 7
