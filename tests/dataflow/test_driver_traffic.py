"""No token column passes through the controller, in any algorithm that is installed.

Every worker runs in this process, so each read of a block is seen; reads by a worker's method are
what they should be, reads by anyone else are what this forbids.
"""

from contextlib import contextmanager

import pytest

from bestiary.batch.batch import Batch, Ready
from bestiary.config.compose import compose_run
from bestiary.dataflow.schedule import Sync
from bestiary.distributed.handles import LocalBlock
from bestiary.distributed.inprocess import InProcessGroup
from bestiary.plugins.manager import load_plugins
from bestiary.runtime.session import open_session

PLUGINS = load_plugins()
TASKS = {"reward_model": "preferences", "cost_model": "preferences", "dpo": "preferences",
         "safe_rlhf": "tradeoff"}  # fmt: skip
EXTRA = {"gdpo": ("reward=sum", "reward.of=[exact_match,format]")}


@contextmanager
def watched(monkeypatch):
    """(names of token columns that the controller read, reads by workers)."""
    inside, seen, fine = [0], [], [0]
    guarded, get, tokens = InProcessGroup._guarded, LocalBlock.get, Batch.tokens

    def in_worker(group, function):
        inside[0] += 1
        try:
            return guarded(group, function)
        finally:
            inside[0] -= 1

    def read(block):
        made = get(block)
        fine[0] += 1
        if not inside[0]:
            seen.extend(made.tokens)
        return made

    def brought(batch, name):
        if not inside[0] and not all(isinstance(h, Ready) for h in batch.columns[name].handles):
            seen.append(name)
        return tokens(batch, name)

    monkeypatch.setattr(InProcessGroup, "_guarded", in_worker)
    monkeypatch.setattr(LocalBlock, "get", read)
    monkeypatch.setattr(Batch, "tokens", brought)
    yield seen, fine


def steps(name, tmp_path, *words):
    """Two steps of an algorithm on a tiny model."""
    task = TASKS.get(name, "addition")
    plan = compose_run(
        [
            f"algorithm={name}", f"task={task}", "model=tiny", "model.hidden=16", "model.layers=1",
            "model.heads=2", "model.warm_start=null", "placement=inprocess",
            "algorithm.prompts=4", "eval.problems=4", *EXTRA.get(name, ()), *words,
        ],
        None,
        PLUGINS,
    )  # fmt: skip
    with open_session(plan, PLUGINS, tmp_path) as session:
        runs = Sync(None).run(session.algorithm, session.sampler, prompts=4, start=0, stop=2)
        return [done.metrics for done in runs]


@pytest.mark.parametrize("name", PLUGINS.registry.names("algorithm"))
def test_no_token_column_passes_through_the_controller(name, tmp_path, monkeypatch):
    with watched(monkeypatch) as (seen, fine):
        made = steps(name, tmp_path)
    assert len(made) == 2
    # Workers did read blocks of other calls, except where the data come from files alone.
    supervised = PLUGINS.registry.get("algorithm", name).options_class().trains_from != "rollouts"
    assert fine[0] > 0 or supervised
    assert sorted(set(seen)) == []


def test_a_read_by_the_controller_is_seen(tmp_path, monkeypatch):
    from bestiary_grpo.algorithm import GRPO

    learn = GRPO.learn

    def nosy(self, batch):
        batch.tokens("response_ids")
        return learn(self, batch)

    monkeypatch.setattr(GRPO, "learn", nosy)
    with watched(monkeypatch) as (seen, _):
        steps("grpo", tmp_path)
    assert "response_ids" in seen
