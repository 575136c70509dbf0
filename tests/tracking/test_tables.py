import io

from rich.console import Console

from bestiary.tracking import answers_table, before_after_table

BEFORE = {"eval/exact_match": 0.331, "eval/greedy": 0.58, "eval/response_len": 3.25}
AFTER = {"eval/exact_match": 0.731, "eval/greedy": 0.5, "kl/reference": 0.0312, "eval/other": 2.0}


def _shown(grid):
    console = Console(file=io.StringIO(), width=120, color_system=None)
    console.print(grid.rich())
    return console.file.getvalue()


def test_before_and_after_with_the_change():
    rows = {row[0]: row[1:] for row in before_after_table(BEFORE, AFTER).rows}
    assert rows["exact match, sampled (T=1, mean of 4)"] == ("0.331", "0.731", "+0.400")
    assert rows["exact match, greedy"] == ("0.580", "0.500", "-0.080")
    assert rows["response length, sampled [tokens]"] == ("3.250", "-", "")
    assert rows["KL to reference [nats/token]"] == ("-", "0.031", "")
    assert rows["eval/other"] == ("-", "2", "")
    assert not any("throughput" in name for name in rows)


def test_the_three_forms_hold_the_same_cells():
    grid = before_after_table(BEFORE, AFTER, title="held out")
    for text in (_shown(grid), grid.markdown(), grid.plain()):
        assert "+0.400" in text
        assert "exact match, greedy" in text
    lines = grid.markdown().splitlines()
    assert lines[1] == "|---|---:|---:|---:|"
    assert {line.count("|") for line in lines} == {5}
    assert grid.plain().startswith("held out\n")


def test_answers_are_marked_by_the_judgement_or_by_equality():
    grid = answers_table(
        [
            {"prompt": "23+45=", "expected": "68", "before": "67", "after": " 68\n"},
            {"prompt": "[bold]?", "expected": "a|b", "before": "a|b", "after": "the answer is a|b",
             "before_ok": False, "after_ok": True},
        ]
    )  # fmt: skip
    assert grid.rows[0] == ("23+45=", "68", "✗ 67", "✓ 68")
    assert grid.rows[1][2:] == ("✗ a|b", "✓ the answer is a|b")
    assert "[bold]?" in _shown(grid)  # model output is never read as markup
    assert "a\\|b" in grid.markdown()


def test_tables_of_nothing_have_their_head():
    assert before_after_table({}, {}).plain().splitlines()[1].split() == [
        "before",
        "after",
        "change",
    ]
    assert answers_table([]).markdown().startswith("| prompt |")
