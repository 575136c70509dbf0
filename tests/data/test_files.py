import csv
import json

import pytest

from bestiary.data.files import read_rows
from bestiary.data.rows import Columns, to_problems
from bestiary.data.split import split_by_uid, without_leaks
from bestiary.data.task import FileTask, FileTaskOptions
from bestiary.errors import ConfigError, DataError
from bestiary.protocols import Problem, Sample, Task
from bestiary.rewards.options import LastNumberOptions
from bestiary.rewards.text import LastNumber


def jsonl(path, rows):
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    return str(path)


def rows(n):
    return [{"prompt": f"q{i}", "answer": i} for i in range(n)]


# ------------------------------------------------------------------ formats


def test_jsonl_json_and_csv_give_the_same_problems(tmp_path):
    content = [{"prompt": 'a, "b"\nc', "answer": "1"}, {"prompt": "é😀\u2028x", "answer": "2"}]
    one = jsonl(tmp_path / "a.jsonl", content)
    two = tmp_path / "a.json"
    two.write_text(json.dumps(content))
    three = tmp_path / "a.csv"
    with three.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, ["prompt", "answer"])
        writer.writeheader()
        writer.writerows(content)
    found = [to_problems(read_rows(p), Columns(), where=str(p))[0] for p in (one, two, three)]
    assert found[0] == found[1] == found[2]
    assert found[0][1].prompt == "é😀\u2028x"


def test_a_byte_order_mark_and_blank_lines_are_no_rows(tmp_path):
    file = tmp_path / "a.jsonl"
    file.write_text('\ufeff{"prompt": "a"}\n\n{"prompt": "b"}\n', encoding="utf-8")
    assert [row["prompt"] for row in read_rows(file)] == ["a", "b"]


def test_parquet_without_pyarrow_names_the_pip_command(tmp_path, monkeypatch):
    file = tmp_path / "a.parquet"
    file.write_bytes(b"PAR1")
    monkeypatch.setattr("bestiary.data.files.find_spec", lambda name: None)
    with pytest.raises(DataError, match="pip install pyarrow"):
        read_rows(file)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.jsonl", '{"prompt": "a"}\n{bad\n', "line 2 is no JSON"),
        ("a.jsonl", "[1]\n", "row 0 is list"),
        ("a.json", "{}", "a list of objects is wanted, not dict"),
        ("a.csv", "prompt,answer\na,1\nb\n", "row 1 has not as many fields"),
        ("a.txt", "x", r"the format '\.txt' is unknown"),
        ("a.jsonl", "", "has no rows"),
    ],
)
def test_a_bad_file_is_named_with_its_row(tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=message):
        read_rows(tmp_path / name)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(DataError, match=r"nowhere\.jsonl' is not there"):
        read_rows(tmp_path / "nowhere.jsonl")


# ------------------------------------------------------------------ types


def test_data05_answers_of_all_types_are_made_uniform_and_null_is_refused(tmp_path):
    """DATA-05: 42, "42", ["42", "42.0"] and null, with the response "The answer is 42"."""
    answers = [42, "42", ["42", "42.0"], None]
    path = jsonl(
        tmp_path / "a.jsonl", [{"prompt": f"q{i}", "answer": a} for i, a in enumerate(answers)]
    )
    with pytest.raises(DataError, match="1 of 4 rows cannot be used: row 3: answer is null"):
        FileTask(FileTaskOptions(path=path, eval_fraction=0.0))
    task = FileTask(FileTaskOptions(path=path, eval_fraction=0.0, bad_rows="drop"))
    assert [index for index, _ in task.left_out] == [3]
    made = task.problems("train")
    assert [p.answer for p in made] == ["42", "42", "42"]
    assert made[2].extra["answers"] == ["42", "42.0"]
    samples = [
        Sample(p.uid, p.prompt, "The answer is 42", p.answer, 4, False, p.extra) for p in made
    ]
    assert LastNumber(LastNumberOptions())(samples) == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ([], "an empty list"),
        ([["1"]], "answer is list"),
        ({"value": 1}, "answer is dict"),
        ("  ", "answer is str"),
        (float("nan"), "answer is float nan"),
        ([1, None], "answer is null"),
    ],
)
def test_other_answers_are_refused_with_their_row(answer, message):
    with pytest.raises(DataError, match=rf"row 0: .*{message}"):
        to_problems([{"prompt": "q", "answer": answer}], Columns(), where="f")


@pytest.mark.parametrize(
    ("answer", "text"), [(42, "42"), (-1.5, "-1.5"), (True, "true"), (" x ", "x"), ([7, "7"], "7")]
)
def test_answers_become_text(answer, text):
    (problem,), _ = to_problems([{"prompt": "q", "answer": answer}], Columns(), where="f")
    assert problem.answer == text
    assert "answers" not in problem.extra


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        (7, "prompt is int 7"),
        ("", "an empty text"),
        ([], "prompt is list"),
        (["hi"], "message 0 is str"),
        ([{"role": "user"}], "message 0: content is null"),
        ([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], "assistant's"),
    ],
)
def test_a_wrong_prompt_is_refused_with_its_row(prompt, message):
    with pytest.raises(DataError, match=rf"row 0: .*{message}"):
        to_problems([{"prompt": prompt, "answer": "x"}], Columns(), where="f")


def test_messages_and_system_prompts():
    talk = [{"role": "user", "content": "a"}]
    given = [{"prompt": talk, "answer": 1}, {"prompt": "plain", "answer": 1}]
    made, _ = to_problems(given, Columns(), where="f", system="be brief")
    assert [[m["role"] for m in p.prompt] for p in made] == [["system", "user"]] * 2
    chat, _ = to_problems(given, Columns(), where="f", chat=True)
    assert chat[1].prompt == ({"role": "user", "content": "plain"},)


def test_columns_are_mapped_and_a_missing_one_is_named():
    row = {"question": "q", "gold": 3, "text": "three", "id": 9, "level": [1, 2]}
    columns = Columns(prompt="question", answer="gold", target="text", uid="id", extra=("level",))
    (problem,), _ = to_problems([row], columns, where="f")
    assert problem == Problem("9", "q", "3", "three", {"level": [1, 2]})
    with pytest.raises(DataError, match="no column 'prompt'; there are: question, gold") as caught:
        to_problems([row], Columns(), where="f")
    assert caught.value.hint == "name the column that is meant: task.prompt=COLUMN"


@pytest.mark.parametrize("where", ["prompt", "answer", "messages", "target"])
def test_half_a_character_is_a_bad_row(where):
    bad = "ab\ud800c"
    row = {"prompt": "q", "answer": "a", "text": "t"}
    if where == "messages":
        row["prompt"] = [{"role": "user", "content": bad}]
    else:
        row[{"target": "text"}.get(where, where)] = bad
    with pytest.raises(DataError, match=r"row 1: \w+ holds half a character \(\\ud800 at 2\)"):
        to_problems([{"prompt": "p", "answer": "a", "text": "t"}, row],
                    Columns(target="text"), where="f")  # fmt: skip


def test_repeated_rows_are_left_out_and_contradictions_refused():
    same = {"prompt": "q", "answer": 1}
    made, left_out = to_problems([same, dict(same)], Columns(), where="f")
    assert len(made) == 1
    assert left_out == [(1, "repeats an earlier row")]
    with pytest.raises(DataError, match="row 1: an earlier row has the same prompt"):
        to_problems([same, {"prompt": "q", "answer": 2}], Columns(), where="f")


def test_many_bad_rows_are_summed_up():
    with pytest.raises(DataError, match=r"9 of 9 rows .*row 4: .*; and 4 more"):
        to_problems([{"prompt": "q", "answer": None}] * 9, Columns(), where="f")
    with pytest.raises(DataError, match="no row can be used; row 0: answer is null"):
        to_problems([{"prompt": "q", "answer": None}], Columns(), where="f", drop_bad=True)


# ------------------------------------------------------------------ splits and the task


def made(n):
    return [Problem(uid=f"u{i}", prompt=f"q{i}") for i in range(n)]


def test_a_problem_keeps_its_side_when_others_come():
    small, large = split_by_uid(made(200), 0.2), split_by_uid(made(400), 0.2)
    assert 20 <= len(small.evaluation) <= 60
    assert {p.uid for p in small.evaluation} <= {p.uid for p in large.evaluation}
    assert {p.uid for p in small.train} <= {p.uid for p in large.train}
    assert split_by_uid(list(reversed(made(200))), 0.2).evaluation[::-1] == small.evaluation


def test_a_small_file_still_holds_out_one_and_keeps_one():
    for fraction in (0.0001, 0.9999):
        split = split_by_uid(made(2), fraction)
        assert (len(split.train), len(split.evaluation)) == (1, 1)
    assert split_by_uid(made(3), 0.0).evaluation == ()


def test_a_held_out_prompt_never_occurs_in_training_under_another_uid():
    train = [Problem(uid="a", prompt="same"), Problem(uid="b", prompt="other")]
    split = without_leaks(train, [Problem(uid="c", prompt="same")])
    assert [p.uid for p in split.train] == ["b"]
    assert split.leaked == 1


def test_the_task_splits_one_file(tmp_path):
    task = FileTask(FileTaskOptions(path=jsonl(tmp_path / "a.jsonl", rows(100)), eval_fraction=0.2))
    assert isinstance(task, Task)
    train, held = task.problems("train"), task.problems("eval")
    assert len(train) + len(held) == 100
    assert 5 <= len(held) <= 40
    assert not {p.prompt for p in train} & {p.prompt for p in held}


def test_the_task_takes_a_second_file_and_removes_leaks(tmp_path):
    train = jsonl(tmp_path / "a.jsonl", rows(10))
    held = jsonl(tmp_path / "b.jsonl", rows(3))
    task = FileTask(FileTaskOptions(path=train, eval_path=held))
    assert [p.prompt for p in task.problems("eval")] == ["q0", "q1", "q2"]
    assert [p.prompt for p in task.problems("train")] == [f"q{i}" for i in range(3, 10)]
    assert task.leaked == 3
    with pytest.raises(DataError, match="none is left to train"):
        FileTask(FileTaskOptions(path=held, eval_path=train))


def test_options_are_checked():
    with pytest.raises(DataError, match=r"set task\.path"):
        FileTask(FileTaskOptions())
    with pytest.raises(ConfigError, match="eval_fraction=1"):
        FileTaskOptions(eval_fraction=1.0)
    with pytest.raises(ConfigError, match="max_tokens=0"):
        FileTaskOptions(max_tokens=0)
    with pytest.raises(ConfigError, match="choose error or drop"):
        FileTaskOptions(bad_rows="ignore")
