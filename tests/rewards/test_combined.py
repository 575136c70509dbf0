"""Several rewards at once."""

import pytest

from bestiary.errors import RewardError
from bestiary.plugins.manager import load_plugins
from bestiary.protocols import Sample

REGISTRY = load_plugins().registry


def build(**options):
    component = REGISTRY.get("reward", "sum")
    return component.build(component.options_class()(**options))


def sample(response, answer="4"):
    return Sample("u", "2+2=", response, answer, len(response), False)


def test_scores_are_weighed_and_kept_as_parts():
    reward = build(
        of=("exact_match", "overlong"),
        weights={"overlong": 0.5},
        options={"overlong": {"limit": 4, "buffer": 2}},
    )
    right, long = reward([sample("4"), sample("4444")])
    assert (right.value, right.parts) == (1.0, {"exact_match": 1.0, "overlong": 0.0})
    assert (long.value, long.parts) == (-0.5, {"exact_match": 0.0, "overlong": -1.0})


def test_a_sample_that_one_cannot_score_is_invalid(tmp_path):
    file = tmp_path / "r.py"
    file.write_text(
        "def f(samples):\n    return [None if s.response == '5' else 1.0 for s in samples]\n"
    )
    reward = build(of=("exact_match", f"{file}:f"))
    scores = reward([sample("4"), sample("5")])
    assert scores[0].value == 2.0
    assert scores[1] is None


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "must name rewards"),
        ({"of": ("exact_match", "exact_match")}, "each once"),
        ({"of": ("exact_match",), "weights": {"length": 1.0}}, "not in"),
        ({"of": ("exact_match",), "options": {"length": {}}}, "not in"),
    ],
)
def test_what_does_not_fit_together_is_refused(options, text):
    with pytest.raises(RewardError, match=text):
        build(**options)
