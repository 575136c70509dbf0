"""Refilling replaces exactly what the sampler rejects."""

import numpy as np
import pytest

from bestiary.batch import Batch, row_key
from bestiary.dataflow.options import SyncOptions
from bestiary.dataflow.refill import collect_groups
from bestiary.dataflow.schedule import Sync
from bestiary.errors import AlgorithmError, RewardError
from bestiary.protocols import Algorithm
from bestiary.roles.score import ScoreRole


class Picky:
    """Draws numbered prompts and rejects those that ``reject`` names."""

    def __init__(self, reject):
        self.reject, self.next, self.seen = reject, 0, []

    def draw(self, n):
        ids = np.arange(self.next, self.next + n)
        self.next += n
        keys = np.array([row_key(i) for i in ids], dtype=np.uint64)
        return Batch({"row_key": keys, "id": ids})

    def accept(self, groups):
        keep = np.array([not self.reject(int(i)) for i in groups["id"]])
        return groups.take(keep), int((~keep).sum())

    def observe(self, batch):
        self.seen.append(batch["id"].tolist())


class Echo(Algorithm):
    def __init__(self):
        super().__init__(None, 0)
        self.seen = []

    def collect(self, prompts):
        return prompts

    def learn(self, batch):
        self.seen.append((self.step, batch["id"].tolist()))
        return {"n": float(len(batch))}


def test_rejected_groups_are_replaced():
    batch = collect_groups(Echo(), Picky(lambda i: i % 2 == 1), 4)
    assert batch["id"].tolist() == [0, 2, 4, 6]


def test_a_sampler_that_rejects_everything_is_an_error():
    with pytest.raises(AlgorithmError, match="rejected every group"):
        collect_groups(Echo(), Picky(lambda i: True), 4)


class Scored(Echo):
    """Scores nothing but the prompts of ``good``."""

    def __init__(self, good):
        super().__init__()
        self.good = good
        self.reward = ScoreRole("reward", Described(), None)

    def collect(self, prompts):
        valid = np.isin(prompts["id"], self.good)
        return prompts.with_columns(valid=valid, trainable=np.ones(len(valid), dtype=bool))


class Described:
    def run(self, method):
        assert method == "describe"
        return [{"reward": "mine.py:f", "owner": "mine (mine 1.0)"}]


def test_a_batch_without_a_valid_score_stops_and_names_the_function():
    algorithm = Scored([])
    schedule = Sync(SyncOptions()).run(
        algorithm, Picky(lambda i: False), prompts=3, start=0, stop=2
    )
    with pytest.raises(RewardError, match=r"step 1: none of the 3 .* 'mine.py:f' \(mine \(mine"):
        next(schedule)
    assert algorithm.seen == []  # nothing was learned from it


def test_one_valid_score_is_enough():
    assert len(collect_groups(Scored([2]), Picky(lambda i: False), 3)) == 3


def test_sync_runs_collect_and_learn_in_turn():
    echo, sampler = Echo(), Picky(lambda i: False)
    done = list(Sync(SyncOptions()).run(echo, sampler, prompts=2, start=3, stop=5))
    assert [d.step for d in done] == [4, 5]
    assert echo.seen == [(4, [0, 1]), (5, [2, 3])]
    assert sampler.seen == [[0, 1], [2, 3]]
