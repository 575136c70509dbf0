import subprocess
import sys

import numpy as np
import pytest

from bestiary.batch import Batch, Column, Ragged, Ready, RowBlock, ship
from bestiary.errors import RewardError
from bestiary.models.tiny import EOS, SPECIALS, TinyOptions, build_tiny
from bestiary.protocols import ComponentRef
from bestiary.rewards.worker import RewardArgs, RewardWorker


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    return str(build_tiny(folder, TinyOptions(hidden=32, layers=1, heads=4)))


def ids(text, end=True):
    return [len(SPECIALS) + b for b in text.encode()] + ([EOS] if end else [])


def objects(values):
    out = np.empty(len(values), dtype=object)
    out[:] = values
    return out


def block(responses, answers, **more):
    n = len(responses)
    table = {
        "row_key": np.arange(n, dtype=np.uint64),
        "uid": objects([f"u{i}" for i in range(n)]),
        "prompt": objects(["p"] * n),
        "answer": objects(answers),
        "extra": objects([{} for _ in range(n)]),
        "truncated": np.zeros(n, dtype=bool),
        **more,
    }
    return RowBlock({"response_ids": Ragged.from_rows(responses, dtype=np.int64)}, table)


def worker(model, reward="exact_match", **options):
    return RewardWorker(RewardArgs(reward=ComponentRef("reward", reward, options), model=model))


def custom(model, tmp_path, body, after=""):
    file = tmp_path / "r.py"
    file.write_text(f"from bestiary import Score\ndef f(samples):\n    {body}\n{after}\n")
    return worker(model, "custom", path=f"{file}:f")


def test_rows_are_decoded_and_scored(model):
    rows = block([ids("46"), ids("47"), ids("é")], ["46", "46", "é"])
    scored, report = worker(model).score(rows)
    assert scored.table["reward"].tolist() == [1.0, 0.0, 1.0]
    assert scored.table["valid"].tolist() == [True, True, True]
    assert scored.table["row_key"].tolist() == [0, 1, 2]
    assert list(scored.table["parts"]) == [{}, {}, {}]
    assert scored.tokens == {}
    assert report["seconds"] >= 0.0
    assert report["metrics"]["reward/invalid"].value == 0.0


def test_a_shipment_is_unpacked(model):
    rows = block([ids("46"), ids("47")], ["46", "46"])
    column = Column.of((Ready(RowBlock(dict(rows.tokens))),), (2,))
    batch = Batch(rows.table, {"response_ids": column})
    seen = ("uid", "prompt", "answer", "extra", "truncated")
    shipment = ship(batch, np.array([1, 0]), ["response_ids"], seen)
    scored, _ = worker(model).score(shipment)
    assert scored.table["reward"].tolist() == [0.0, 1.0]
    text, _ = worker(model).decode(shipment)
    assert list(text.table["text"]) == ["47", "46"]


def test_math07_lengths_come_from_the_rows_and_not_from_an_end_token(model, tmp_path):
    """MATH-07: a cut response has no end token; another has one inside; lengths stay theirs."""
    w = custom(
        model, tmp_path, "return [Score(s.response_len, {'cut': s.truncated}) for s in samples]"
    )
    rows = block(
        [ids("123", end=False), ids("4"), [*ids("5"), *ids("6")]],
        ["", "", ""],
        truncated=np.array([True, False, False]),
    )
    scored, _ = w.score(rows)
    assert scored.table["reward"].tolist() == [3.0, 2.0, 4.0]
    assert scored.table["reward_part/cut"].tolist() == [1.0, 0.0, 0.0]


def test_data07_text_with_half_a_character_is_scored_and_ids_are_left_alone(model, tmp_path):
    """DATA-07: the cut character is U+FFFD for the reward only."""
    half = [len(SPECIALS) + 0xC3]
    rows = block([half], ["\ufffd"])
    scored, _ = worker(model).score(rows)
    assert scored.table["reward"].tolist() == [1.0]
    assert rows.tokens["response_ids"].row(0).tolist() == half


def test_rew04_a_missing_score_is_marked(model, tmp_path):
    """REW-04: rewards 1, 0, None, 1: the third is invalid, without NaN anywhere."""
    scored, report = custom(model, tmp_path, "return [1, 0, None, 1]").score(
        block([ids("x")] * 4, [""] * 4)
    )
    assert scored.table["reward"].tolist() == [1.0, 0.0, 0.0, 1.0]
    assert scored.table["valid"].tolist() == [True, True, False, True]
    assert report["metrics"]["reward/invalid"].value == 0.25


def test_rew03_a_bare_number_names_the_function(model, tmp_path):
    with pytest.raises(RewardError, match=r"r\.py:f' returned a single float"):
        custom(model, tmp_path, "return 1.0").score(block([ids("x")] * 4, [""] * 4))


def test_parts_are_columns_and_metrics(model, tmp_path):
    body = "return [Score(1, {'form': 1.0}), Score(0, {'form': 0.0, 'fact': 3.0}), None]"
    scored, report = custom(model, tmp_path, body).score(block([ids("x")] * 3, [""] * 3))
    assert list(scored.table["parts"]) == [{"form": 1.0}, {"form": 0.0, "fact": 3.0}, {}]
    np.testing.assert_equal(scored.table["reward_part/form"], [1.0, 0.0, np.nan])
    np.testing.assert_equal(scored.table["reward_part/fact"], [np.nan, 3.0, np.nan])
    assert report["metrics"]["reward/form"].value == 0.5
    assert report["metrics"]["reward/fact"].value == 3.0


def test_spans_put_a_steps_reward_on_its_last_token(model, tmp_path):
    body = "return [Score(1, {}, ((0, 2, 0.5), (2, 3, 0.25))), 0.0]"
    rows = block([ids("ab"), ids("c")], ["", ""])
    with pytest.raises(RewardError, match="without declaring"):
        custom(model, tmp_path, body).score(rows)
    scored, _ = custom(model, tmp_path, body, after="f.spans = True").score(rows)
    assert scored.tokens["token_rewards"].row(0).tolist() == [0.0, 0.5, 0.25]
    assert scored.tokens["token_rewards"].row(1).tolist() == [0.0, 0.0]


def test_no_rows_are_no_call(model, tmp_path):
    scored, _ = custom(model, tmp_path, "raise RuntimeError").score(block([], []))
    assert len(scored.table["reward"]) == 0


def test_a_worker_says_what_it_hosts(model, tmp_path):
    assert worker(model).describe()["reward"] == "exact_match"
    assert len(custom(model, tmp_path, "return 1.0").describe()["digest"]) == 16


def test_a_worker_needs_no_torch(model):
    code = (
        "import sys\n"
        "from bestiary.protocols import ComponentRef\n"
        "from bestiary.rewards.worker import RewardArgs, RewardWorker\n"
        f"w = RewardWorker(RewardArgs(reward=ComponentRef('reward', 'exact_match'), "
        f"model={model!r}))\n"
        "assert w.decoder.decode([52]) == '1'\n"
        "assert not {'torch', 'transformers', 'ray'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
