import pytest

from bestiary.plugins.names import did_you_mean, nearest, normalise

KNOWN = ["grpo", "ppo", "safe_rlhf", "remax", "lab_reinforce"]


@pytest.mark.parametrize(
    "name", ["Bestiary_Lab", "bestiary.lab", "bestiary--lab", " bestiary-lab "]
)
def test_distributions_are_compared_as_indexes_do(name):
    assert normalise(name) == "bestiary-lab"


@pytest.mark.parametrize(
    ("name", "best"),
    [
        ("grop", "grpo"),
        ("GRPO", "grpo"),
        ("safe-rlhf", "safe_rlhf"),
        ("reinforce", "lab_reinforce"),
        ("remaxx", "remax"),
    ],
)
def test_the_nearest_name_comes_first(name, best):
    assert nearest(name, KNOWN)[0] == best


def test_a_name_that_is_near_nothing_gets_no_suggestion():
    assert nearest("zzz", KNOWN) == []
    assert did_you_mean("zzz", KNOWN) == ""
    assert nearest("x", []) == []


def test_suggestions_are_joined():
    assert did_you_mean("pop", ["ppo", "pope"]) == "; did you mean 'pope' or 'ppo'?"
