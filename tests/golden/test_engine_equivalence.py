"""The golden class of the training engine: one trajectory, however it is computed.

Five steps of policy, entropy and masked terms on recorded rollouts. Each member (ranks, sharding,
micro-batches, padding, products) is compared with ``engine_equivalence.json`` in loss and gradient
norm, by the largest difference and by the mean one, which catches a drift to one side.

Record anew with ``python tests/golden/test_engine_equivalence.py --record`` (on one rank, padded,
without micro-batches), and say in the change why the numbers moved.
"""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch

from bestiary.batch import Ragged, RowBlock
from bestiary.engines.engine_api import ModelSpec, Ranks, TermJob, UpdatePart
from bestiary.engines.fsdp.engine import FSDPEngine
from bestiary.engines.fsdp.options import FSDPOptions
from bestiary.engines.microbatch import plan_microbatches
from bestiary.models.tiny import TinyOptions, build_tiny
from bestiary.ops.policy import clipped_surrogate
from bestiary.protocols import ComponentRef, LossOptions
from bestiary.testing.ranks import run_ranks

RECORD = Path(__file__).with_name("engine_equivalence.json")
REFERENCE = {"world": 1, "budget": 100_000, "packing": "padded", "fast_linear": False}
MEMBERS = {
    "reference": REFERENCE,
    "packed": {"world": 1, "budget": 100_000},
    "a_row_a_micro_batch": {"world": 1, "budget": 1},
    "small_micro_batches": {"world": 1, "budget": 30},
    "padded_micro_batches": {"world": 1, "budget": 60, "packing": "padded"},
    "two_ranks": {"world": 2, "budget": 50},
    "two_ranks_sharded": {"world": 2, "budget": 50, "shard": "full"},
    "four_ranks": {"world": 4, "budget": 40},
    "four_ranks_sharded": {"world": 4, "budget": 40, "shard": "full"},
    "recomputed": {"world": 1, "budget": 60, "activation_checkpointing": True},
}
LARGEST, MEAN = 2e-5, 5e-6
"""Tolerances, relative to the recorded value."""
SHAPE = TinyOptions(
    arch="llama",
    hidden=32,
    layers=2,
    heads=4,
    kv_heads=2,
    intermediate=128,
    positions=64,
    tied=True,
)


class Policy:
    options = LossOptions()

    def __call__(self, now, x):
        adv = x["advantages"].float()
        return clipped_surrogate(now.logprobs, x["old_logprobs"], adv, x.mask), {}


class EntropyOptions(LossOptions):
    outputs = frozenset({"entropy"})


class Entropy:
    options = EntropyOptions()

    def __call__(self, now, x):
        return -0.01 * now.entropy, {}


LOSSES = {"policy": Policy(), "entropy": Entropy()}


def model(folder):
    """A tiny Llama whose weights come from numpy, so that no version of torch changes them."""
    from safetensors.torch import load_file, save_file

    build_tiny(folder, SHAPE)
    file = folder / "model.safetensors"
    rng = np.random.default_rng(7)
    state = {}
    for name, tensor in sorted(load_file(str(file)).items()):
        drawn = rng.normal(0.0, 0.08, tuple(tensor.shape)).astype(np.float32)
        state[name] = torch.from_numpy(drawn + ("norm" in name))
    save_file(state, str(file), metadata={"format": "pt"})
    return str(folder)


def rollouts(steps):
    """The rollouts of each step, with the log-probabilities of an older policy."""
    rng = np.random.default_rng(11)
    for _ in range(steps):
        prompts = [rng.integers(3, 259, k) for k in (5, 5, 8)]
        lengths = rng.integers(0, 13, 12)
        lengths[3] = 0
        masks = [rng.random(k) < 0.9 for k in lengths]
        old = [rng.normal(-5.6, 0.1, k).astype(np.float32) for k in lengths]
        yield RowBlock(
            {
                "prompt_ids": Ragged.from_rows([prompts[i // 4] for i in range(12)], np.int64),
                "response_ids": Ragged.from_rows(
                    [rng.integers(3, 259, k) for k in lengths], np.int64
                ),
                "response_mask": Ragged.from_rows(masks, bool),
                "old_logprobs": Ragged.from_rows(old, np.float32),
            },
            {"advantages": rng.normal(size=12)},
        )


def trajectory(rank, world, path, budget, options):
    """[(this rank's share of each loss, gradient norm)] of five steps."""
    engine = FSDPEngine(
        FSDPOptions(lr=1e-3, clip_norm=0.5, warmup_steps=2, **options),
        ModelSpec(path=path),
        Ranks(rank, world),
        lambda ref: LOSSES[ref.name],
    )
    steps = []
    for rows in rollouts(5):
        lengths = rows.tokens["response_ids"].lengths
        plan = plan_microbatches(
            rows.tokens["prompt_ids"].lengths,
            lengths,
            np.arange(12) // 4,
            world=world,
            tokens_per_micro=budget,
        ).ranks[rank]
        live = rows.tokens["response_mask"]
        count = np.array([live.row(i).sum() for i in range(12)])
        per_row = 1.0 / (12 * np.maximum(count, 1))
        weights = {"policy": np.full(12, 1.0 / count.sum()), "entropy": per_row}
        terms = [
            TermJob(ComponentRef("loss", name), w[plan.rows] * ~plan.padding)
            for name, w in weights.items()
        ]
        part = UpdatePart(
            rows=rows.take(plan.rows), micro=plan.micro, terms=terms, dummy=plan.dummy
        )
        stats = engine.update([part])
        steps.append([stats[f"loss/{n}"].total for n in LOSSES] + [stats["grad_norm"].value])
    return steps


def run(path, world, budget, **options):
    """{"loss/policy": [...], "loss/entropy": [...], "grad_norm": [...]} over the steps."""
    ranks = np.array(run_ranks(world, trajectory, path, budget, options))
    losses = ranks[:, :, :2].sum(0)
    return {
        "loss/policy": losses[:, 0].tolist(),
        "loss/entropy": losses[:, 1].tolist(),
        "grad_norm": ranks[0, :, 2].tolist(),
    }


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return model(tmp_path_factory.mktemp("golden"))


@pytest.mark.golden
@pytest.mark.parametrize("member", list(MEMBERS))
def test_member_follows_the_recorded_trajectory(path, member):
    recorded = json.loads(RECORD.read_text())["steps"]
    found = run(path, **MEMBERS[member])
    for name, wanted in recorded.items():
        difference = (np.array(found[name]) - wanted) / np.abs(wanted)
        assert np.abs(difference).max() <= LARGEST, (name, difference)
        assert abs(difference.mean()) <= MEAN, (name, difference)


@pytest.mark.golden
def test_the_recorded_trajectory_moves():
    steps = json.loads(RECORD.read_text())["steps"]
    for values in steps.values():
        assert len(set(values)) == 5
    assert min(steps["grad_norm"]) > 0.05


def record():
    with tempfile.TemporaryDirectory() as folder:
        steps = run(model(Path(folder)), **REFERENCE)
    out = {
        "what": "five steps of the training engine on recorded rollouts",
        "config": REFERENCE,
        "environment": {"torch": torch.__version__, "numpy": np.__version__},
        "steps": steps,
    }
    RECORD.write_text(json.dumps(out, indent=1) + "\n")


if __name__ == "__main__":
    if sys.argv[1:] != ["--record"]:
        sys.exit("give --record to replace the recorded trajectory")
    torch.set_num_threads(1)
    record()
