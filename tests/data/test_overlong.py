import pytest
from hypothesis import given
from hypothesis import strategies as st

from bestiary.data.overlong import check_policy, fit
from bestiary.errors import DataError

IDS = [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize(
    ("policy", "expected"),
    [("left", [4, 5, 6, 7]), ("right", [1, 2, 3, 4]), ("middle", [1, 2, 6, 7]), ("drop", None)],
)
def test_data03_each_policy(policy, expected):
    """DATA-03: ids 1..7 under a limit of 4."""
    assert fit(IDS, 4, policy, 0, "u") == expected


def test_data03_the_error_names_row_length_and_limit():
    with pytest.raises(DataError, match=r"row 5 \(uid u\) has 7 tokens, the limit is 4"):
        fit(IDS, 4, "error", 5, "u")


@given(
    ids=st.lists(st.integers(0, 9), min_size=1, max_size=20),
    limit=st.integers(0, 25),
    policy=st.sampled_from(["left", "right", "middle"]),
)
def test_a_cut_prompt_has_exactly_the_limit(ids, limit, policy):
    kept = fit(ids, limit, policy, 0, "u")
    assert len(kept) == (len(ids) if limit == 0 else min(limit, len(ids)))


def test_the_middle_of_an_odd_limit_keeps_one_more_at_the_start():
    assert fit(IDS, 3, "middle", 0, "u") == [1, 2, 7]
    assert fit(IDS, 1, "middle", 0, "u") == [1]


def test_an_unknown_policy_is_refused():
    with pytest.raises(DataError, match="choose from error, drop, left, right, middle"):
        check_policy("truncate")
