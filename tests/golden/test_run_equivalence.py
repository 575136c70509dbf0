"""The equivalence class of whole GRPO steps on recorded rollouts.

One process without Ray, one, two and four Ray workers, and other micro-batch sizes learn from the
same recorded rollouts: losses and gradient norms of the steps agree within 2e-5 (the largest
difference) and 5e-6 (the mean one). Record anew: ``python tests/golden/test_run_equivalence.py
--record``.
"""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch

from bestiary.batch import Batch, Column, Ragged, Ready, RowBlock, as_column, row_key
from bestiary.distributed.inprocess import InProcessGroup
from bestiary.distributed.pools import ResourcePool
from bestiary.distributed.worker_group import WorkerGroup
from bestiary.engines.engine_api import ModelSpec
from bestiary.models.tiny import TinyOptions, build_tiny
from bestiary.plugins.manager import load_plugins
from bestiary.protocols import ComponentRef, Term
from bestiary.roles.advantage import AdvantageRole
from bestiary.roles.model import Model
from bestiary.roles.policy import PolicyRole
from bestiary.roles.services import Services
from bestiary.runtime.components import Components
from bestiary.runtime.worker import ModelPlan, WorkerPlan

RECORD = Path(__file__).parent / "run_equivalence.json"
WORKER = "bestiary.runtime.worker:ModelWorker"
STEPS, PROMPTS, SAMPLES = 3, 4, 4
MAX, MEAN = 2e-5, 5e-6


def rollouts(step):
    """Groups of responses of odd lengths with rewards: what a step's collect would have made."""
    rng = np.random.default_rng([7, step])
    groups = np.repeat(np.arange(PROMPTS), SAMPLES)
    prompts = [rng.integers(3, 259, rng.integers(2, 9)) for _ in range(PROMPTS)]
    responses = [rng.integers(3, 259, rng.integers(1, 12)) for _ in groups]
    tokens = {
        "prompt_ids": Ragged.from_rows([prompts[g] for g in groups], np.int64),
        "response_ids": Ragged.from_rows(responses, np.int64),
    }
    tokens["response_mask"] = Ragged.from_lengths(
        np.ones(len(tokens["response_ids"].values), dtype=bool), tokens["response_ids"].lengths
    )
    column = Column.of([Ready(RowBlock(tokens))], [len(groups)])
    lengths = tokens["response_ids"].lengths
    table = {
        "row_key": np.array([row_key(step, i) for i in range(len(groups))], dtype=np.uint64),
        "group_uid": as_column([f"{step}/{g}" for g in groups]),
        "prompt_len": tokens["prompt_ids"].lengths,
        "response_len": lengths,
        "loss_tokens": lengths,
        "reward": rng.integers(0, 2, len(groups)).astype(np.float64),
        "valid": np.arange(len(groups)) % 7 != 3,
        "trainable": np.ones(len(groups), dtype=bool),
    }
    return Batch(table, dict.fromkeys(tokens, column))


def learn(group, components, tokens_per_micro):
    """Three optimizer steps of clipped surrogate and KL; (loss, KL, gradient norm) of each."""
    services = Services(0, components.options)
    actor = PolicyRole("actor", Model("actor", group, tokens_per_micro), services)
    reference = PolicyRole(
        "reference", Model("reference", group, tokens_per_micro), services, frozen=True
    )
    ref = ComponentRef("advantage", "group")
    advantage = AdvantageRole(ref, components.build(ref), components.options(ref), group, services)
    steps = []
    for step in range(STEPS):
        batch = rollouts(step)
        batch = batch.join(reference.logprobs(batch), actor.logprobs(batch, into="old_logprobs"))
        batch = batch.join(advantage(batch))
        for minibatch in batch.minibatches(2, seed=step):
            actor.update(minibatch, Term("clip"), Term("kl", coef=0.05))
            found = services.ledger.drain()
            steps.append([found["loss/clip"], found["loss/kl"], found["grad_norm"]])
    return steps


def make_plan(folder):
    """A worker plan of a tiny actor and its reference, and this process's components."""
    build_tiny(folder, TinyOptions(hidden=32, layers=2, heads=4, kv_heads=2, positions=64))
    components = Components(load_plugins())
    train = ComponentRef("train_engine", "fsdp", {"lr": 1e-4})
    models = {
        name: ModelPlan(ModelSpec(path=str(folder), trainable=name == "actor"), train, None)
        for name in ("actor", "reference")
    }
    return WorkerPlan(models, components.plugins.fingerprint()), components


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    return make_plan(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def first(plan):
    group = InProcessGroup("one", WORKER, plan[0])
    return learn(group, plan[1], 4096)


def compare(found, wanted):
    gap = np.abs(np.array(found) - np.array(wanted))
    assert gap.max() <= MAX, gap
    assert gap.mean() <= MEAN, gap


@pytest.mark.golden
def test_the_recorded_trajectory(first):
    compare(first, json.loads(RECORD.read_text())["steps"])


@pytest.mark.golden
@pytest.mark.parametrize("tokens_per_micro", [1, 40])
def test_other_microbatches(plan, first, tokens_per_micro):
    compare(learn(InProcessGroup("one", WORKER, plan[0]), plan[1], tokens_per_micro), first)


@pytest.mark.golden
@pytest.mark.slow
@pytest.mark.parametrize("world", [1, 2, 4])
def test_ray_workers(plan, first, cluster, tmp_path, world):
    pool = ResourcePool(devices=[f"cpu:{i}" for i in range(world)], name=f"w{world}")
    with WorkerGroup(f"w{world}", pool, WORKER, plan[0], log_dir=tmp_path) as group:
        compare(learn(group, plan[1], 64), first)


def record():
    """Write the reference trajectory."""
    with tempfile.TemporaryDirectory() as folder:
        plan, components = make_plan(Path(folder))
        steps = learn(InProcessGroup("one", WORKER, plan), components, 4096)
    version = torch.__version__.split("+")[0]
    RECORD.write_text(json.dumps({"torch": version, "steps": steps}, indent=1) + "\n")


if __name__ == "__main__" and sys.argv[1:] == ["--record"]:
    record()
