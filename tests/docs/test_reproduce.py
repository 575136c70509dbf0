"""Every line of the table composes."""

import re
from pathlib import Path

import pytest

from bestiary.config.compose import compose_run

PAGE = Path(__file__).parents[2] / "docs" / "reproduce.md"
LINES = re.findall(r"^\| (?!to reproduce)(.+?) \| `(algorithm=.+?)` \|$", PAGE.read_text(), re.M)


@pytest.mark.parametrize(("what", "words"), LINES)
def test_a_line_is_accepted(what, words):
    given = words.split()
    if "task=" not in words:
        given.append("task=addition")
    plan = compose_run([*given, "model=tiny"])
    assert plan.choices["algorithm"] == words.partition("=")[2].split()[0]


def test_the_table_is_there():
    assert len(LINES) > 30
