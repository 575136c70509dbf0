"""Rows for estimators, shards of them, and a reduction over shards."""

import json
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from bestiary.batch import Rows
from bestiary.distributed.collectives import LocalReduce
from bestiary.plugins.manager import load_plugins
from bestiary.protocols import Stat

LOCAL = LocalReduce()
CASES = Path(__file__).parents[1] / "cases" / "oracles.json"


class ShardReduce:
    """A reduction over threads, one for each shard: sums in the order of ranks."""

    def __init__(self, world):
        self.world, self.barrier, self.parts = world, threading.Barrier(world), [None] * world
        self.rank = threading.local()

    def _gather(self, x):
        self.parts[self.rank.value] = x.double()
        self.barrier.wait()
        parts = list(self.parts)
        self.barrier.wait()
        return parts

    def sum(self, x):
        return sum(self._gather(x)).to(x.dtype)

    def max(self, x):
        return torch.stack(self._gather(x)).amax(0).to(x.dtype)


def take(rows, index):
    columns = {name: x[index] for name, x in rows.items()}
    text = {name: [x[i] for i in index.tolist()] for name, x in rows.text.items()}
    return Rows(columns, rows.mask[index], text)


def on_shards(estimator, rows, shards, **scalars):
    """Run on each shard in a thread; results put together again."""
    reduce = ShardReduce(len(shards))
    found, failed = [None] * len(shards), []

    def run(rank):
        reduce.rank.value = rank
        try:
            found[rank] = estimator(take(rows, shards[rank]), reduce, **scalars)
        except BaseException as error:
            failed.append(error)
            reduce.barrier.abort()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(len(shards))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
    out = {}
    for name, first in found[0].items():
        if isinstance(first, Stat):
            total = first
            for other in found[1:]:
                total = total + other[name]
            out[name] = total
            continue
        whole = torch.zeros((rows.size, *first.shape[1:]), dtype=first.dtype)
        for rank, index in enumerate(shards):
            whole[index] = found[rank][name]
        out[name] = whole
    return out


def make(seed=0, groups=(4, 3, 1, 4), width=6, kl=False, invalid=True):
    """Rows of several groups with every column that an estimator may read."""
    rng = np.random.default_rng(seed)
    group = np.repeat(np.arange(len(groups)), groups)
    n = len(group)
    lengths = rng.integers(1, width + 1, n)
    mask = torch.from_numpy(np.arange(width)[None] < lengths[:, None])

    def tokens(scale=1.0, shift=0.0):
        return torch.from_numpy(rng.normal(size=(n, width)) * scale + shift)

    old = -tokens().abs()
    columns = {
        "reward": torch.from_numpy(rng.integers(0, 3, n) / 2.0),
        "baseline_reward": torch.from_numpy(rng.integers(0, 3, len(groups)) / 2.0)[group],
        "group": torch.from_numpy(group),
        "valid": torch.ones(n, dtype=torch.bool),
        "response_len": torch.from_numpy(lengths),
        "truncated": torch.from_numpy(rng.random(n) < 0.4),
        "values": tokens(),
        "values_after": torch.from_numpy(rng.normal(size=n)),
        "old_logprobs": old,
        "rollout_logprobs": old + tokens(0.3),
        "probs_squared": tokens().abs().clamp(max=1.0),
        "token_rewards": tokens(0.2),
    }
    if kl:
        columns["ref_logprobs"] = old + tokens(0.5)
    else:
        del columns["token_rewards"]
    if invalid:
        columns["valid"][1] = False
        columns["reward"][1] = 0.0
    parts = [{"style": float(rng.integers(0, 3)), "truth": float(rng.normal())} for _ in range(n)]
    return Rows(columns, mask, {"parts": parts})


def case(name):
    found = next(c for c in json.loads(CASES.read_text())["cases"] if c["name"] == name)
    return found["inputs"], found["expected"]


@pytest.fixture(scope="session")
def kit():
    """The helpers above, and estimators by name."""
    registry = load_plugins().registry

    def estimator(name, **options):
        component = registry.get("advantage", name)
        return component.build(component.options_class()(**options))

    def options(name):
        return registry.get("advantage", name).options_class()

    return SimpleNamespace(
        estimator=estimator, options=options, make=make, on_shards=on_shards, take=take,
        local=LOCAL, case=case, names=registry.names("advantage"),
    )  # fmt: skip
