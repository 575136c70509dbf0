from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bestiary.errors import ConfigError
from bestiary.protocols import Reward, Sample
from bestiary.rewards.options import ExactMatchOptions, FormatOptions, LastNumberOptions
from bestiary.rewards.text import ExactMatch, Format, LastNumber, last_number, parse_number


def sample(response, answer="46", **extra):
    return Sample("u", "12+34=", response, answer, len(response), False, extra)


def test_exact_match_strips_both_sides_and_nothing_else():
    reward = ExactMatch(ExactMatchOptions())
    assert isinstance(reward, Reward)
    responses = ["46", " 46\n", "46.", "4 6", "046", "", "the 46"]
    assert reward([sample(r) for r in responses]) == [1, 1, 0, 0, 0, 0, 0]
    assert reward([]) == []


def test_exact_match_takes_each_accepted_answer():
    reward = ExactMatch(ExactMatchOptions(ignore_case=True))
    options = {"answers": ["Yes", "sure"]}
    samples = [sample(r, "Yes", **options) for r in ("YES", "Sure", "no")]
    assert reward(samples) == [1, 1, 0]


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("The answer is 42", "42"),
        ("42.", "42"),
        ("so 6 * 7 = 42.50 exactly", "42.50"),
        ("x = -3", "-3"),
        ("x = \u22123", "-3"),
        ("5-3", "3"),
        ("(2)-3", "3"),
        ("1,234,567 people", "1234567"),
        ("3,4", "4"),
        ("12,3456", "3456"),
        (r"\boxed{17}", "17"),
        ("1e3", "1000"),
        ("no number", None),
        ("", None),
    ],
)
def test_the_last_number_of_a_text(text, number):
    assert last_number(text) == (None if number is None else Decimal(number))


@given(st.text(alphabet="0123456789.,-+eE\u2212 x()", max_size=40))
def test_any_text_has_a_last_number_or_none_and_can_be_scored(text):
    number = last_number(text)
    assert number is None or number.is_finite()
    assert LastNumber(LastNumberOptions())([sample(text)])[0] in (0.0, 1.0)


@given(st.integers(-(10**9), 10**9))
def test_every_integer_is_read_back_in_both_spellings(n):
    assert parse_number(str(n)) == parse_number(f"{n:,}") == n
    assert last_number(f"The result is {n:,}.") == n


def test_numbers_are_compared_as_numbers():
    reward = LastNumber(LastNumberOptions())
    assert reward([sample("it is 42.0", "42"), sample("it is 41", "42")]) == [1, 0]
    near = LastNumber(LastNumberOptions(tolerance=0.01))
    assert near([sample("3.14", "3.1416"), sample("3.1", "3.1416")]) == [1, 0]


def test_huge_exponents_are_a_wrong_answer_and_no_crash():
    reward = LastNumber(LastNumberOptions())
    assert reward([sample("1e999999999"), sample("1e999"), sample("9" * 6000)]) == [0, 0, 0]


def test_an_answer_that_is_no_number_is_an_error():
    with pytest.raises(ValueError, match="answer 'blue' of u is no number"):
        LastNumber(LastNumberOptions())([sample("3", "blue")])


def test_format_judges_form_and_not_length():
    reward = Format(FormatOptions(pattern=r"<think>.*</think>\s*\d+"))
    long = "<think>" + "x\n" * 1000 + "</think> 4"
    assert reward([sample("<think></think>4"), sample(long), sample("4")]) == [1, 1, 0]


def test_options_are_checked():
    with pytest.raises(ConfigError, match="tolerance=-1"):
        LastNumberOptions(tolerance=-1.0)
    with pytest.raises(ConfigError, match="no regular expression"):
        FormatOptions(pattern="(")
