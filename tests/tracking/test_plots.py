import subprocess
import sys

import pytest
from matplotlib.image import imread

from bestiary.errors import DataError
from bestiary.tracking import learning_curve
from bestiary.tracking.curves import moving_mean, seconds, series, shares


def _records(n=40, every=10):
    records = [{"step": 0, "attempt": 1, "eval/exact_match": 0.3, "time/eval_s": 1.0}]
    for step in range(1, n + 1):
        record = {
            "step": step, "attempt": 1, "reward/mean": step / n, "kl/reference": 0.01 * step,
            "entropy": 1.0, "response_len/mean": 3.0, "time/rollout_s": 0.5, "time/update_s": 0.25,
            "time/step_s": 1.0,
        }  # fmt: skip
        if step % every == 0:
            record |= {"eval/exact_match": 0.5, "eval/greedy": 0.6, "time/eval_s": 2.0}
        records.append(record)
    return records


def test_series_leaves_out_what_was_not_measured():
    records = [{"step": 1, "a": 1.0}, {"step": 2}, {"step": 3, "a": None}, {"step": 4, "a": 2}]
    assert series(records, "a") == ([1, 4], [1.0, 2.0])


def test_seconds_add_steps_and_evaluations():
    at = seconds(_records(n=10))
    assert (at[0], at[1], at[9], at[10]) == (1.0, 2.0, 10.0, 13.0)


def test_moving_mean_is_centred_and_shorter_at_the_ends():
    assert moving_mean([0.0, 3.0, 6.0, 9.0], 3) == [1.5, 3.0, 6.0, 7.5]
    assert moving_mean([1.0, 2.0], 1) == [1.0, 2.0]
    assert moving_mean([], 5) == []


def test_shares_put_one_evaluation_into_each_group():
    steps, (rollout, score, update, sync, evaluation, other) = shares(_records(n=40))
    assert len(steps) == 4
    assert rollout == pytest.approx([5 / 12] * 4)
    assert evaluation == pytest.approx([2 / 12] * 4)
    assert update == pytest.approx([2.5 / 12] * 4)
    assert other == pytest.approx([2.5 / 12] * 4)
    assert score == sync == [0.0] * 4


def test_shares_of_untimed_records_are_empty():
    assert shares([{"step": 1}])[0] == []


@pytest.mark.parametrize("n", [0, 1, 40])
def test_a_run_is_drawn(tmp_path, n):
    path = learning_curve(_records(n), tmp_path / "new" / "curve.png", title="grpo · seed 0")
    picture = imread(path)
    assert min(picture.shape[:2]) > 600
    assert (picture[..., :3].min(axis=2) < 0.9).mean() > 0.01  # something is on the page


def test_drawing_more_data_changes_the_picture(tmp_path):
    learning_curve(_records(20), tmp_path / "a.png")
    learning_curve(_records(40), tmp_path / "b.png")
    learning_curve(_records(40), tmp_path / "c.png")
    a, b, c = ((tmp_path / f"{x}.png").read_bytes() for x in "abc")
    assert a != b
    assert b == c


def test_runs_are_compared_by_label(tmp_path):
    path = learning_curve({f"seed {i}": _records(20) for i in range(9)}, tmp_path / "curves.svg")
    text = path.read_text()
    assert "<svg" in text
    assert text.count("<!-- seed 8 -->") == 1


@pytest.mark.parametrize("runs", [[], {}, {"a": []}])
def test_nothing_to_draw_is_an_error(tmp_path, runs):
    with pytest.raises(DataError, match="no records"):
        learning_curve(runs, tmp_path / "x.png")


def test_matplotlib_is_imported_only_for_drawing_and_pyplot_never(tmp_path):
    code = """
import sys
from bestiary.tracking import learning_curve
assert not {"matplotlib", "torch", "ray"} & set(sys.modules)
learning_curve([{"step": 1, "reward/mean": 1.0}], sys.argv[1])
assert "matplotlib.pyplot" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "x.png")], check=True, timeout=60)
