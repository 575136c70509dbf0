"""Preference data as they are published: HH-RLHF, PKU-SafeRLHF, UltraFeedback."""

import json

import pytest

from bestiary.batch import preference_pairs
from bestiary.data.rows import Columns, to_problems
from bestiary.data.source import PromptSource
from bestiary.data.task import FileTask, FileTaskOptions
from bestiary.errors import ConfigError, DataError
from bestiary.protocols import Problem


class Letters:
    """A tokenizer with one id a letter."""

    def render(self, prompt, chat_template="auto"):
        return prompt if isinstance(prompt, str) else "|".join(m["content"] for m in prompt)

    def encode_prompt(self, prompt, chat_template="auto"):
        return [ord(c) for c in self.render(prompt, chat_template)]

    def encode_target(self, text):
        return [*map(ord, text), 0]


def task(tmp_path, rows, **options):
    file = tmp_path / "pairs.jsonl"
    file.write_text("\n".join(json.dumps(row) for row in rows))
    return FileTask(FileTaskOptions(path=str(file), answer="", eval_fraction=0.0, **options))


# --------------------------------------------------------------------------- HH-RLHF

HH = [
    {
        "chosen": "\n\nHuman: Hi\n\nAssistant: Hello.\n\nHuman: Bake?\n\nAssistant: Flour, then.",
        "rejected": "\n\nHuman: Hi\n\nAssistant: Hello.\n\nHuman: Bake?\n\nAssistant: No.",
    },
    {
        "chosen": "\n\nHuman: 2+2?\n\nAssistant: 4",
        "rejected": "\n\nHuman: 2+2?\n\nAssistant: 5\n",
    },
]
BOTH = {"prompt": "", "target": "chosen", "rejected": "rejected"}


def test_hh_rlhf_transcripts_share_their_prompt(tmp_path):
    first, second = task(tmp_path, HH, **BOTH).problems("train")
    assert first.prompt == "\n\nHuman: Hi\n\nAssistant: Hello.\n\nHuman: Bake?\n\nAssistant:"
    assert (first.target, first.rejected) == (" Flour, then.", " No.")
    assert second.prompt + second.target == HH[1]["chosen"]
    assert second.prompt + second.rejected == HH[1]["rejected"]


@pytest.mark.parametrize("options", [{"chat": True}, {"system": "S"}])
def test_hh_rlhf_transcripts_as_messages(tmp_path, options):
    first, second = task(tmp_path, HH, **BOTH, **options).problems("train")
    head = ({"role": "system", "content": "S"},) if "system" in options else ()
    assert first.prompt == (
        *head,
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello."},
        {"role": "user", "content": "Bake?"},
    )
    assert (first.target, first.rejected) == ("Flour, then.", "No.")
    assert (second.target, second.rejected) == ("4", "5")


@pytest.mark.parametrize(
    ("chosen", "rejected", "message"),
    [
        ("\n\nHuman: a\n\nAssistant: b", "\n\nHuman: c\n\nAssistant: b", "differ before"),
        ("\n\nHuman: a\n\nAssistant: b\n\nHuman: c", "\n\nHuman: a\n\nAssistant: b", "not end"),
        ("just text", "\n\nHuman: a\n\nAssistant: b", "target does not end with"),
        ("\n\nHuman: a\n\nAssistant:", "\n\nHuman: a\n\nAssistant: b", "target is str ''"),
        ("\n\nHuman: a\n\nAssistant: b", 3, "rejected: a transcript or"),
        ([{"role": "assistant", "content": "x"}], "t", "at least two messages"),
    ],
)
def test_a_conversation_that_cannot_be_split_is_refused_with_its_row(chosen, rejected, message):
    columns = Columns(answer="", **BOTH)
    rows = [HH[0], {"chosen": chosen, "rejected": rejected}]
    with pytest.raises(DataError, match=f"row 1: .*{message}"):
        to_problems(rows, columns, where="f")
    made, left_out = to_problems(rows, columns, where="f", drop_bad=True)
    assert len(made) == 1
    assert [index for index, _ in left_out] == [1]


def test_one_conversation_is_a_target_with_its_prompt():
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    columns = Columns(prompt="", answer="", target="messages")
    (problem,), _ = to_problems([{"messages": messages}], columns, where="f")
    assert problem.prompt == ({"role": "user", "content": "q"},)
    assert (problem.target, problem.rejected) == ("a", None)


# --------------------------------------------------------------------------- PKU-SafeRLHF

PKU = [
    {
        "prompt": "How?", "response_0": "so", "response_1": "thus", "is_response_0_safe": True,
        "is_response_1_safe": False, "better_response_id": 1, "safer_response_id": 0,
    },
    {
        "prompt": "How?", "response_0": "so", "response_1": "never", "is_response_0_safe": False,
        "is_response_1_safe": True, "better_response_id": 0, "safer_response_id": 1,
    },
]  # fmt: skip
CHOICE = {
    "target": "response_0",
    "rejected": "response_1",
    "safe": ("is_response_0_safe", "is_response_1_safe"),
}


@pytest.mark.parametrize(
    ("choice", "pairs", "safe"),
    [
        ("better_response_id", [("thus", "so"), ("so", "never")], [(0, 1), (0, 1)]),
        ("safer_response_id", [("so", "thus"), ("never", "so")], [(1, 0), (1, 0)]),
        ("", [("so", "thus"), ("so", "never")], [(1, 0), (0, 1)]),
    ],
)
def test_pku_saferlhf_pairs_are_ordered_by_a_column_and_keep_their_labels(
    tmp_path, choice, pairs, safe
):
    problems = task(tmp_path, PKU, choice=choice, **CHOICE).problems("train")
    assert [(p.target, p.rejected) for p in problems] == pairs
    labels = [(p.extra["chosen_safe"], p.extra["rejected_safe"]) for p in problems]
    assert labels == safe
    assert all(type(value) is bool for pair in labels for value in pair)


def test_labels_and_texts_of_a_file_reach_the_rows_that_a_cost_model_learns_from(tmp_path):
    problems = task(tmp_path, PKU, choice="safer_response_id", **CHOICE).problems("train")
    pairs = preference_pairs(PromptSource(problems, Letters()).hand_out([0, 1]))
    texts = ["".join(map(chr, pairs.tokens("response_ids").row(i)[:-1])) for i in range(4)]
    assert texts == ["so", "thus", "never", "so"]
    assert pairs["preferred"].tolist() == [1, 0, 1, 0]
    assert pairs["unsafe"].tolist() == [-1, 1, -1, 1]


def test_several_pairs_of_one_prompt_are_problems_of_their_own_on_one_side_of_the_split(tmp_path):
    rows = [
        {**row, "prompt": f"q{i % 10}", "response_0": f"r{i}"} for i, row in enumerate(PKU * 20)
    ]
    file = tmp_path / "many.jsonl"
    file.write_text("\n".join(json.dumps(row) for row in rows))
    made = FileTask(FileTaskOptions(path=str(file), answer="", eval_fraction=0.1, **CHOICE))
    train, held = made.problems("train"), made.problems("eval")
    assert len(train) + len(held) + made.leaked == 40
    assert held
    assert not {p.prompt for p in train} & {p.prompt for p in held}


@pytest.mark.parametrize("value", [2, "yes", None, 0.5, [0]])
def test_a_choice_that_is_none_is_refused(value):
    row = {**PKU[0], "better_response_id": value}
    with pytest.raises(DataError, match=r"'better_response_id' is .*0 or 1 is wanted"):
        to_problems([row], Columns(answer="", choice="better_response_id", **CHOICE), where="f")


def test_labels_out_of_a_csv_are_numbers_as_text():
    row = {**PKU[0], "is_response_0_safe": "1", "is_response_1_safe": "0"}
    (problem,), _ = to_problems([row], Columns(answer="", **CHOICE), where="f")
    assert problem.extra == {"chosen_safe": True, "rejected_safe": False}


# --------------------------------------------------------------------------- UltraFeedback

ULTRA = {
    "prompt": "Name a prime.",
    "chosen": [
        {"role": "user", "content": "Name a prime."},
        {"role": "assistant", "content": "7"},
    ],
    "rejected": [
        {"role": "user", "content": "Name a prime."},
        {"role": "assistant", "content": "9"},
    ],
    "score_chosen": 8.5,
    "score_rejected": 3.0,
}


def test_ultrafeedback_with_its_prompt_or_with_the_messages_before_the_answer(tmp_path):
    pair = {"target": "chosen", "rejected": "rejected", "extra": ("score_chosen",)}
    (problem,) = task(tmp_path, [ULTRA], **pair).problems("train")
    assert problem.prompt == "Name a prime."
    assert (problem.target, problem.rejected) == ("7", "9")
    assert problem.extra == {"score_chosen": 8.5}
    (problem,) = task(tmp_path, [ULTRA], prompt="", **pair).problems("train")
    assert problem.prompt == ({"role": "user", "content": "Name a prime."},)
    assert (problem.target, problem.rejected) == ("7", "9")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prompt": ""}, "prompt is empty"),
        ({"target": "a", "choice": "c"}, "without rejected"),
        ({"target": "a", "safe": ("x", "y")}, "without rejected"),
        ({"target": "a", "rejected": "b", "safe": ("x",)}, "two columns"),
    ],
)
def test_options_that_do_not_fit_together_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        FileTaskOptions(path="p", **options)


# --------------------------------------------------------------------------- messages for scorers


def test_a_scorer_sees_the_messages_of_a_conversation_and_nothing_of_a_plain_prompt():
    chat = ({"role": "system", "content": "s"}, {"role": "user", "content": "q"})
    problems = [Problem("c", chat, extra={"n": 1}), Problem("p", "plain", extra={"n": 2})]
    source = PromptSource(problems, Letters())
    conversation, plain = source.hand_out([0, 1])["extra"]
    assert conversation == {"n": 1, "messages": [dict(m) for m in chat]}
    assert plain == {"n": 2}
    always = PromptSource(problems, Letters(), chat_template="always")
    assert always.peek([1])["extra"][0]["messages"] == [{"role": "user", "content": "plain"}]
