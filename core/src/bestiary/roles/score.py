"""Roles of kind ``score``: a number for each sample, from a reward function."""

from dataclasses import replace

import numpy as np

from bestiary.batch import Batch, Column, ship
from bestiary.roles.model import Group
from bestiary.roles.services import Services, spread

BASELINE_TAG = "baseline"
"""Rows of a sampling with this tag give their group its ``<name>`` baseline column."""

_SEEN = ("uid", "prompt", "answer", "extra", "response_len", "truncated")


class ScoreRole:
    """A scorer in its own processes under the name of a role.

    Args:
        name: the role, and the sample column that it makes unless told otherwise.
        group: the worker group of the scorer.
        services: shared by the roles of the run.
        spans: its scores have rewards of spans, which become token rewards.
    """

    def __init__(self, name: str, group: Group, services: Services, *, spans: bool = False) -> None:
        self.name = name
        self.group = group
        self.services = services
        self.spans = spans

    def score(self, batch: Batch, into: str = "") -> Batch:
        """Score each response; returns at once.

        Makes the sample columns ``into``, ``valid`` and ``parts`` (JSON objects), and the token
        column ``token_rewards`` where the scorer declares ``spans``; a scorer whose
        column is not ``reward`` makes ``valid_<into>`` and ``parts_<into>``, and a row is trained
        on where all are valid. Where the batch has rows tagged ``baseline``, also
        ``baseline_<into>``: the score of the baseline row of each row's group. A group whose
        baseline is invalid is invalid as a whole: there is nothing to compare its rows with.
        """
        into = into or self.name
        runs = spread(np.ones(len(batch)), self.group.size)
        calls = [(ship(batch, run, ["response_ids"], _SEEN),) for run in runs]
        handles = self.group.call("score", calls)
        self.services.ledger.note("score", handles)
        column = Column.of(handles, [len(run) for run in runs])
        scored = Batch(
            {"row_key": batch["row_key"]},
            {"token_rewards": column} if self.spans else {},
            dict.fromkeys(("reward", "valid", "parts"), column),
        )
        if BASELINE_TAG in set(batch["tag"]):
            valid = scored["valid"].astype(bool)
            scored = scored.with_columns(
                baseline_reward=_baseline(batch, scored["reward"]),
                valid=valid & _baseline(batch, valid).astype(bool),
            )
        return scored if into == "reward" else _renamed(scored, into)

    def described(self) -> str:
        """``reward 'exact_match' (plugin (distribution version))``, for messages."""
        about = self.group.run("describe")[0]
        return f"{self.name} {about['reward']!r}" + (f" ({about['owner']})" * bool(about["owner"]))

    def texts(self, batch: Batch) -> list[str]:
        """The responses as text, decoded where the scorer runs."""
        everything = ship(batch, np.arange(len(batch)), ["response_ids"])
        nothing = ship(batch, np.zeros(0, dtype=np.int64), ["response_ids"])
        calls = [(everything if rank == 0 else nothing,) for rank in range(self.group.size)]
        return [str(text) for text in self.group.call("decode", calls)[0].table()["text"]]


def _renamed(scored: Batch, into: str) -> Batch:
    """The same under names that do not meet those of another scorer."""
    names = {"row_key": "row_key", "reward": into, "baseline_reward": f"baseline_{into}"}
    table = scored.sample_columns()
    tokens = {f"token_{into}s": replace(c, name="token_rewards") for c in scored.columns.values()}
    named = {names.get(name, f"{name}_{into}"): column for name, column in table.items()}
    return Batch(named, tokens)


def _baseline(batch: Batch, values: np.ndarray) -> np.ndarray:
    """The value of the baseline row of each row's group; 0 for a group without one."""
    group = batch.group_index()
    mine = np.flatnonzero(batch["tag"] == BASELINE_TAG)
    table = np.zeros(int(group.max()) + 1)
    table[group[mine]] = values[mine]
    return table[group]
