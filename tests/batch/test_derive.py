"""Preference pairs, continuations and columns made on the controller."""

import numpy as np
import pytest

from bestiary.batch import (
    Batch,
    Column,
    Ragged,
    Ready,
    RowBlock,
    preference_pairs,
    prefixes,
    token_column,
)
from bestiary.batch import row_key as key_of


def objects(values):
    out = np.empty(len(values), dtype=object)
    out[:] = values
    return out


def batch(n=3, **tokens):
    table = {
        "row_key": np.array([key_of("prompt", i) for i in range(n)], dtype=np.uint64),
        "uid": objects([f"u{i}" for i in range(n)]),
        "group_uid": objects([f"u{i}#0" for i in range(n)]),
        "draw": np.zeros(n, dtype=np.int64),
        "prompt": objects([f"p{i}" for i in range(n)]),
        "answer": objects([str(i) for i in range(n)]),
        "extra": objects([{"chosen_safe": i > 0, "rejected_safe": False} for i in range(n)]),
        "prompt_len": np.arange(1, n + 1),
        "tag": objects(["sample"] * n),
        "sample_index": np.zeros(n, dtype=np.int64),
    }
    rows = {"prompt_ids": Ragged.from_rows([[10 + i] * (i + 1) for i in range(n)])}
    rows |= {name: Ragged.from_rows(values, dtype=np.int64) for name, values in tokens.items()}
    return Batch(table, dict.fromkeys(rows, Column.of((Ready(RowBlock(rows)),), (n,))))


def test_a_pair_is_a_group_of_two_rows():
    prompts = batch(target_ids=[[1], [2, 2], [3]], rejected_ids=[[4, 4], [5], [6, 6, 6]])
    pairs = preference_pairs(prompts)
    assert pairs["tag"].tolist() == ["chosen", "rejected"] * 3
    assert pairs["preferred"].tolist() == [1, 0] * 3
    assert pairs["group_uid"].tolist() == ["u0#0", "u0#0", "u1#0", "u1#0", "u2#0", "u2#0"]
    responses = pairs.tokens("response_ids")
    assert [responses.row(i).tolist() for i in range(6)] == [
        [1], [4, 4], [2, 2], [5], [3], [6, 6, 6],
    ]  # fmt: skip
    assert pairs["response_len"].tolist() == [1, 2, 2, 1, 1, 3]
    assert pairs.tokens("prompt_ids").row(3).tolist() == [11, 11]
    assert pairs["unsafe"].tolist() == [1, 1, -1, 1, -1, 1]
    assert len(set(pairs["row_key"].tolist())) == 6


def test_labels_that_are_not_all_there_are_left_out():
    prompts = batch(target_ids=[[1]] * 3, rejected_ids=[[2]] * 3)
    prompts = prompts.with_columns(extra=objects([{}, {}, {}]))
    assert "unsafe" not in preference_pairs(prompts)


def test_prompts_without_pairs_say_what_is_missing():
    with pytest.raises(ValueError, match="rejected_ids"):
        preference_pairs(batch(target_ids=[[1]] * 3))


def test_prefixes_are_prompts_with_streams_of_their_own():
    rows = batch(response_ids=[[1, 2, 3], [4, 5], [6]])
    made = prefixes(rows, [2, 0, 1])
    prompts = made.tokens("prompt_ids")
    assert [prompts.row(i).tolist() for i in range(3)] == [[10, 1, 2], [11, 11], [12, 12, 12, 6]]
    assert made["prompt_len"].tolist() == [3, 2, 4]
    assert made["parent_uid"].tolist() == rows["group_uid"].tolist()
    assert made["answer"].tolist() == rows["answer"].tolist()
    twice = prefixes(rows.take([0, 0]), [1, 1])
    for name in ("uid", "group_uid", "row_key"):
        assert len(set(made[name].tolist())) == 3
        assert len(set(twice[name].tolist())) == 2


@pytest.mark.parametrize("cuts", [[4, 0, 0], [-1, 0, 0], [0, 0]])
def test_a_cut_outside_of_its_response_is_refused(cuts):
    with pytest.raises(ValueError, match="cut within"):
        prefixes(batch(response_ids=[[1, 2, 3], [4, 5], [6]]), cuts)


def test_a_column_of_the_controller_joins_like_any_other():
    rows = batch(response_ids=[[1, 2], [3], [4]])
    column = Ragged.from_rows([[0.5, 1.5], [2.5], [3.5]])
    joined = rows.take([2, 0, 1]).join(token_column(rows, advantages=column))
    assert joined.tokens("advantages").values.tolist() == [3.5, 0.5, 1.5, 2.5]
    with pytest.raises(ValueError, match="has 3 rows, the batch 2"):
        token_column(rows.take([0, 1]), advantages=column)
