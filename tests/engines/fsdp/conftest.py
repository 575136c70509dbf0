"""Tiny models of real architectures, recorded-looking rows, and engines that run them."""

from types import SimpleNamespace

import numpy as np
import pytest

from bestiary.batch import Ragged, RowBlock
from bestiary.engines.engine_api import ModelSpec, Ranks, TermJob, UpdatePart
from bestiary.engines.fsdp.engine import FSDPEngine
from bestiary.engines.fsdp.options import FSDPOptions
from bestiary.engines.microbatch import plan_microbatches
from bestiary.models.tiny import TinyOptions, build_tiny
from bestiary.ops.policy import clipped_surrogate
from bestiary.protocols import ComponentRef, LossOptions, Stat

ARCHS = {
    "llama": TinyOptions(
        arch="llama", hidden=32, layers=2, heads=4, tied=True, kv_heads=2, positions=96
    ),
    "qwen2": TinyOptions(arch="qwen2", hidden=32, layers=2, heads=4, tied=False, positions=96),
    "qwen3": TinyOptions(
        arch="qwen3", hidden=32, layers=2, heads=4, tied=True, kv_heads=1, positions=96
    ),
    "gpt2": TinyOptions(arch="gpt2", hidden=32, layers=2, heads=4, tied=True, positions=96),
}


@pytest.fixture(scope="session")
def model_of(tmp_path_factory):
    """Folder of a tiny model by architecture, made once."""
    made = {}

    def get(arch):
        if arch not in made:
            made[arch] = str(build_tiny(tmp_path_factory.mktemp(arch), ARCHS[arch]))
        return made[arch]

    return get


class Policy:
    options = LossOptions()

    def __call__(self, now, x):
        loss = clipped_surrogate(
            now.logprobs, x["old_logprobs"], x["advantages"].float(), x.mask, clip_low=0.1
        )
        return loss, {"seen": Stat(float(x.mask.sum()), how="sum")}


class EntropyOptions(LossOptions):
    outputs = frozenset({"entropy"})


class Entropy:
    options = EntropyOptions()

    def __call__(self, now, x):
        return -now.entropy, {}


class ValueOptions(LossOptions):
    outputs = frozenset({"values"})


class Value:
    options = ValueOptions()

    def __call__(self, now, x):
        return (now.values - x["advantages"].float()[:, None]).square(), {}


LOSSES = {"policy": Policy(), "entropy": Entropy(), "value": Value()}


def resolve(ref):
    return LOSSES[ref.name]


def make_rows(seed=0, n=13, vocab=259):
    """Groups of equal prompts of several lengths, responses of 0 to 20 tokens, some masked."""
    rng = np.random.default_rng(seed)
    prompts = [rng.integers(3, vocab, k) for k in (4, 4, 9, 1)]
    chosen = np.sort(rng.integers(0, 4, n))
    lengths = rng.integers(0, 21, n)
    lengths[:4] = (7, 7, 1, 0)
    masks = [np.ones(k, dtype=bool) for k in lengths]
    masks[5][::3] = False
    return RowBlock(
        {
            "prompt_ids": Ragged.from_rows([prompts[i] for i in chosen], np.int64),
            "response_ids": Ragged.from_rows(
                [rng.integers(3, vocab, k) for k in lengths], np.int64
            ),
            "response_mask": Ragged.from_rows(masks, bool),
        },
        {"advantages": rng.normal(size=n)},
    )


def parts_of(rows, weights, *, rank=0, world=1, budget=40, temperature=1.0):
    """What rank ``rank`` gets of an update on ``rows`` with named weights for each term."""
    prompts = rows.tokens["prompt_ids"]
    keys = {}
    same = np.array([keys.setdefault(prompts.row(i).tobytes(), i) for i in range(len(rows))])
    plan = plan_microbatches(
        prompts.lengths,
        rows.tokens["response_ids"].lengths,
        same,
        world=world,
        tokens_per_micro=budget,
    ).ranks[rank]
    live = ~plan.padding
    terms = [TermJob(ComponentRef("loss", k), w[plan.rows] * live) for k, w in weights.items()]
    return [
        UpdatePart(
            rows=rows.take(plan.rows),
            micro=plan.micro,
            terms=terms,
            temperature=temperature,
            dummy=plan.dummy,
        )
    ]


def weights_of(rows, *names):
    """Different weights for each row and term, one of them 0."""
    rng = np.random.default_rng(1)
    total = rows.tokens["response_ids"].lengths.sum()
    out = {}
    for name in names:
        out[name] = rng.uniform(0.5, 2.0, len(rows)) / total
        out[name][2] = 0.0
    return out


def engine(path, rank=0, world=1, *, head="lm", dtype="fp32", trainable=True, **options):
    spec = ModelSpec(path=path, head=head, dtype=dtype, trainable=trainable)
    return FSDPEngine(FSDPOptions(**options), spec, Ranks(rank, world), resolve)


def whole(e):
    """All weights as numpy arrays."""
    return {n: t.numpy().copy() for bucket in e.export() for n, t in bucket.items()}


def gradients(e):
    """Whole gradients by name after an update without clipping."""
    import torch

    found = {}
    for name, p in e.net.named_parameters():
        grad = p.grad.full_tensor() if hasattr(p.grad, "full_tensor") else p.grad
        found[name.removeprefix("lm.")] = torch.zeros_like(p) if grad is None else grad
    return {name: g.detach().numpy().copy() for name, g in found.items()}


def close(a, b, rel=1e-5):
    """Largest difference relative to the largest entry over all arrays."""
    assert a.keys() == b.keys()
    scale = max(np.abs(x).max() for x in b.values())
    worst = max(np.abs(a[k] - b[k]).max() for k in a)
    assert worst <= rel * scale, f"{worst / scale:.2e} relative"


@pytest.fixture(scope="session")
def kit():
    """The helpers above."""
    names = dict(globals())
    return SimpleNamespace(
        **{k: names[k] for k in ("ARCHS", "LOSSES", "make_rows", "parts_of", "weights_of")},
        **{k: names[k] for k in ("engine", "whole", "gradients", "close", "resolve")},
    )
