import math

import pytest

from bestiary.tracking.text import (
    clean,
    duration,
    number,
    phase_shares,
    run_title,
    sparkline,
)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "-"), (0.0, "0"), (1.0, "1"), (0.41251, "0.413"), (-0.0056, "-0.006"),
        (0.0000123, "1.2e-05"), (12.345, "12.3"), (4120.3, "4,120"), (float("nan"), "nan"),
        (float("inf"), "inf"), (7, "7"),
    ],
)  # fmt: skip
def test_number(value, expected):
    assert number(value) == expected


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(0, "0:00"), (6.6, "0:07"), (59.6, "1:00"), (750, "12:30"), (3723, "1:02:03"), (-3, "0:00"),
     (math.inf, "-")],
)  # fmt: skip
def test_duration(seconds, expected):
    assert duration(seconds) == expected


def test_sparkline_spans_its_own_range():
    assert sparkline([0.0, 0.5, 1.0], 10) == "▁▅█"
    assert sparkline([3.0, 3.0], 10) == "▄▄"
    assert sparkline([1.0, None, float("nan"), 0.0], 10) == "█▁"
    assert sparkline([], 10) == sparkline([None], 10) == sparkline([1.0], 0) == ""


def test_sparkline_averages_what_does_not_fit():
    assert sparkline([0, 0, 1, 1, 2, 2, 3, 3], 4) == "▁▃▆█"
    assert len(sparkline(range(1001), 18)) == 18


def test_clean_leaves_nothing_that_moves_a_cursor():
    assert clean("a\nb\tc\x1b[2Jd\r\x07\u202e!") == "a⏎b c�[2Jd���!"
    assert clean("  x  ") == "x"
    assert clean("abcdef", 4) == "abc…"
    assert clean(3.5) == "3.5"


def test_run_title_takes_names_paths_and_plain_texts():
    config = {"algorithm": {"name": "grpo", "n": 8}, "task": "addition", "seed": 0}
    assert run_title("r", config | {"model": {"path": "/a/b/tiny/"}}) == (
        "grpo · addition · tiny · seed 0"
    )
    assert run_title("my run", {"seed": 1}) == "my run"
    assert run_title("r", {"algorithm": "sft", "model": {"name": ""}}) == "sft"


def test_shares_add_up_to_one_and_name_the_rest():
    shares = phase_shares(
        {"time/rollout_s": 4.0, "time/update_s": 3.0, "time/step_s": 8.0, "time/eval_s": 2.0}
    )
    assert shares == pytest.approx(
        {"rollout": 0.4, "score": 0.0, "update": 0.3, "sync": 0.0, "eval": 0.2, "other": 0.1}
    )
    assert phase_shares({}) == {}


def test_overlapping_phases_are_shares_of_their_sum():
    shares = phase_shares({"time/rollout_s": 6.0, "time/update_s": 6.0, "time/step_s": 6.0})
    assert shares["rollout"] == shares["update"] == 0.5
    assert shares["other"] == 0.0
