import json

import numpy as np
import pytest

from bestiary.data.source import PromptSource
from bestiary.errors import CheckpointError, DataError
from bestiary.protocols import Problem, Prompts


class Letters:
    """A tokenizer with one id a letter."""

    def render(self, prompt, chat_template="auto"):
        return prompt if isinstance(prompt, str) else "|".join(m["content"] for m in prompt)

    def encode_prompt(self, prompt, chat_template="auto"):
        return [ord(c) for c in self.render(prompt, chat_template)]

    def encode_target(self, text):
        return [*map(ord, text), 0]


def problems(*texts, target=False):
    return [
        Problem(
            uid=f"p{i}",
            prompt=t,
            answer=t.upper(),
            target=t[::-1] if target else None,
            extra={"n": i},
        )
        for i, t in enumerate(texts)
    ]


def source(*texts, target=False, **options):
    return PromptSource(problems(*texts, target=target), Letters(), **options)


def test_a_hand_out_has_all_columns():
    batch = source("ab", "cde").hand_out([1, 0])
    assert batch["uid"].tolist() == ["p1", "p0"]
    assert batch["group_uid"].tolist() == ["p1#0", "p0#0"]
    assert batch["draw"].tolist() == [0, 0]
    assert batch["prompt_len"].tolist() == [3, 2]
    assert batch["prompt"].tolist() == ["cde", "ab"]
    assert batch["answer"].tolist() == ["CDE", "AB"]
    assert batch["extra"].tolist() == [{"n": 1}, {"n": 0}]
    assert batch.tokens("prompt_ids").row(0).tolist() == [ord(c) for c in "cde"]
    assert "target_ids" not in batch
    assert batch["row_key"].dtype == np.uint64


def test_draws_are_counted_for_each_prompt_and_make_groups_of_their_own():
    s = source("ab", "cd")
    first = s.hand_out([0, 0, 1])
    assert first["group_uid"].tolist() == ["p0#0", "p0#1", "p1#0"]
    second = s.hand_out([1, 0])
    assert second["draw"].tolist() == [1, 2]
    keys = [*first["row_key"], *second["row_key"]]
    assert len(set(keys)) == 5


def test_a_peek_counts_nothing():
    s = source("ab")
    assert s.peek([0])["draw"].tolist() == [0]
    assert s.hand_out([0])["draw"].tolist() == [0]


def test_targets_end_with_the_end_token():
    s = source("ab", "cd", target=True)
    assert s.has_targets
    assert s.hand_out([0]).tokens("target_ids").row(0).tolist() == [ord("b"), ord("a"), 0]


def test_targets_are_all_or_none():
    mixed = [*problems("ab", target=True), Problem(uid="q", prompt="cd")]
    with pytest.raises(DataError, match="1 of 2 problems have no target, the first is 'q'"):
        PromptSource(mixed, Letters())


@pytest.mark.parametrize(
    ("policy", "rows", "dropped", "cut"),
    [
        ("left", ["ab", "defg"], 0, 1),
        ("right", ["ab", "abcd"], 0, 1),
        ("middle", ["ab", "abfg"], 0, 1),
        ("drop", ["ab"], 1, 0),
    ],
)
def test_data03_policies_are_applied_and_counted(policy, rows, dropped, cut):
    """DATA-03: no prompt over the limit reaches the engine, and each case is counted."""
    s = source("ab", "abcdefg", max_prompt=4, overlong=policy)
    ids = s.hand_out(range(len(s))).tokens("prompt_ids")
    assert ["".join(map(chr, ids.row(i))) for i in range(len(s))] == rows
    assert (s.counts.given, s.counts.dropped, s.counts.cut) == (2, dropped, cut)


def test_data03_holds_for_conversations_too():
    talk = Problem(uid="t", prompt=({"role": "u", "content": "abcdefg"},))
    s = PromptSource([talk], Letters(), max_prompt=4, overlong="left")
    assert s.prompt_lengths.tolist() == [4]
    with pytest.raises(DataError, match=r"row 0 \(uid t\) has 7 tokens, the limit is 4"):
        PromptSource([talk], Letters(), max_prompt=4)


def test_when_nothing_is_left_the_error_says_why():
    with pytest.raises(DataError, match="no prompt is left of 1: 1 are over 4 tokens"):
        source("abcdefg", max_prompt=4, overlong="drop")


def test_repeated_uids_and_empty_prompts_are_refused():
    with pytest.raises(DataError, match="names two prompts"):
        PromptSource([Problem(uid="a", prompt="x"), Problem(uid="a", prompt="y")], Letters())
    with pytest.raises(DataError, match=r"row 1 \(uid p1\) has no tokens"):
        source("ab", "")


def test_state_goes_through_json_and_keeps_the_draws():
    s = source("ab", "cd", "ef")
    s.hand_out([0, 1, 2, 1])
    again = source("ab", "cd", "ef")
    again.load_state_dict(json.loads(json.dumps(s.state_dict())))
    assert again.hand_out([0, 1, 2])["draw"].tolist() == [1, 2, 1]


def test_a_state_of_other_prompts_is_refused():
    state = source("ab", "cd").state_dict()
    with pytest.raises(CheckpointError, match="made with other prompts"):
        source("ab", "ce").load_state_dict(state)


def test_an_index_outside_is_refused():
    with pytest.raises(DataError, match=r"outside of 0\.\.1"):
        source("ab", "cd").hand_out([2])


def test_the_source_is_what_samplers_are_promised():
    s: Prompts = source("ab", "cd", seed=7)
    assert s.seed == 7
    assert len(s) == 2
    assert list(s.uids) == ["p0", "p1"]
    assert sorted(s.order().next(2).tolist()) == [0, 1]
    assert s.order(shuffle=False).next(3).tolist() == [0, 1, 0]


def test_selecting_and_joining_work_on_a_hand_out():
    batch = source("ab", "cd", "ef").hand_out([0, 1, 2])
    taken = batch.take([2, 0])
    assert taken.tokens("prompt_ids").row(0).tolist() == [ord("e"), ord("f")]
    joined = taken.join(batch.with_columns(score=np.array([1.0, 2.0, 3.0])))
    assert joined["score"].tolist() == [3.0, 1.0]
