"""Edges of an optimizer step: nothing valid, dummies, numbers that are not finite, bf16."""

import math

import numpy as np
import pytest
import torch

from bestiary.engines.engine_api import TermJob, UpdatePart
from bestiary.engines.fsdp.sharded import Sharded
from bestiary.errors import AlgorithmError, EngineError, ModelError, NumericalError
from bestiary.protocols import ComponentRef
from bestiary.testing.ranks import run_ranks


def test_data_06_a_batch_without_valid_rows_has_zero_gradients(kit, model_of):
    rows = kit.make_rows()

    def run(rank, world):
        e = kit.engine(model_of("llama"), rank, world, lr=1e-2, shard="full")
        weights = {"policy": np.zeros(len(rows))}
        stats = e.update(kit.parts_of(rows, weights, rank=rank, world=world))
        return kit.gradients(e), stats["grad_norm"].value, stats["loss/policy"].total

    for world in (1, 2):
        for grads, norm, loss in run_ranks(world, run):
            assert norm == 0.0
            assert loss == 0.0
            assert all((g == 0).all() for g in grads.values())


@pytest.mark.parametrize("shard", ["none", "full"])
def test_dist_02_ranks_with_fewer_rows_run_dummies_of_weight_zero(kit, model_of, shard):
    """Five long and two short rows on two ranks, then two rows on four ranks: nobody waits."""
    rows = kit.make_rows()
    few = rows.take([4, 6])

    def run(rank, world, rows):
        e = kit.engine(model_of("llama"), rank, world, clip_norm=0, shard=shard)
        weights = {"policy": np.full(len(rows), 0.01)}
        (part,) = kit.parts_of(rows, weights, rank=rank, world=world, budget=12)
        stats = e.update([part])
        return kit.gradients(e), len(part.micro), len(part.dummy), stats["update/tokens"].total

    for world, chosen in ((2, rows), (4, few)):
        wanted = run(0, 1, chosen)
        results = run_ranks(world, run, chosen, timeout_s=30)
        assert len({r[1] for r in results}) == 1
        for found, *_ in results:
            kit.close(found, wanted[0])
        assert sum(r[3] for r in results) == wanted[3]
    assert sum(r[2] > 0 for r in results) >= 2


def test_rows_without_weight_cannot_poison_the_others(kit, model_of):
    rows = kit.make_rows()
    weights = kit.weights_of(rows, "policy")
    weights["policy"][7] = 0.0
    clean = kit.engine(model_of("llama"))
    clean.update(kit.parts_of(rows, weights))
    for bad in (math.nan, math.inf):
        rows.table["advantages"][7] = bad
        e = kit.engine(model_of("llama"))
        stats = e.update(kit.parts_of(rows, weights))
        assert math.isfinite(stats["loss/policy"].value)
        kit.close(kit.gradients(e), kit.gradients(clean), rel=0)


@pytest.mark.parametrize("shard", ["none", "full"])
def test_a_step_that_is_not_finite_is_skipped_on_every_rank(kit, model_of, shard):
    rows = kit.make_rows()
    bad = kit.make_rows()
    bad.table["advantages"][9] = math.nan

    def run(rank, world):
        e = kit.engine(model_of("llama"), rank, world, lr=1e-2, shard=shard, max_skipped=1)
        weights = kit.weights_of(rows, "policy")
        before = kit.whole(e)
        log = []
        for chosen in (bad, rows, bad):
            stats = e.update(kit.parts_of(chosen, weights, rank=rank, world=world))
            log.append((stats["update/skipped"].value, e.version, e.skipped_in_row))
            if chosen is bad and e.version == 0:
                after = kit.whole(e)
                assert all((after[k] == before[k]).all() for k in before)
        with pytest.raises(NumericalError, match="2 steps in a row"):
            e.update(kit.parts_of(bad, weights, rank=rank, world=world))
        return log, all(np.isfinite(x).all() for x in kit.whole(e).values())

    for world in (1, 2):
        for rank, (log, finite) in enumerate(run_ranks(world, run)):
            once = 1.0 if rank == 0 else 0.0
            assert log == [(once, 0, 1), (0.0, 1, 0), (once, 1, 1)]
            assert finite


def test_dist_11_a_parameter_that_nothing_depends_on_is_named(kit, model_of, monkeypatch):
    from bestiary.engines.fsdp import build

    load = build.load_causal_lm

    def with_stray(*args, **kwargs):
        lm = load(*args, **kwargs)
        lm.stray = torch.nn.Linear(2, 2)
        return lm

    monkeypatch.setattr(build, "load_causal_lm", with_stray)
    with pytest.raises(ModelError, match=r"depends on stray\.weight, stray\.bias"):
        kit.engine(model_of("llama"))


def test_dist_11_a_gradient_on_some_ranks_only_is_summed():
    """4 on rank 0 and none on rank 1 is 4; a head that rank 1 skips does not stop it."""

    class Heads(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = (torch.nn.Linear(2, 2, bias=False) for _ in range(2))

        def forward(self, x, skip):
            y = self.body(x)
            return y if skip else y + self.head(x)

    def run(rank, world):
        module = Heads()
        for p in module.parameters():
            torch.nn.init.ones_(p)
        layout = Sharded(module, [], torch.float32, trainable=True, world=world, device_type="cpu")
        x = torch.full((1, 2), 4.0 if rank == 0 else 1.0)
        module(x, skip=rank == 1).sum().backward()
        layout.reduce()
        norm = float(layout.squared_norm())
        return {n: p.grad.full_tensor().numpy() for n, p in module.named_parameters()}, norm

    for grads, norm in run_ranks(2, run):
        assert (grads["head.weight"] == 4.0).all()
        assert (grads["body.weight"] == 5.0).all()
        assert norm == pytest.approx(4 * 4.0**2 + 4 * 5.0**2)


def test_the_same_update_gives_the_same_bits(kit, model_of):
    rows = kit.make_rows()
    after = []
    for _ in range(2):
        e = kit.engine(model_of("llama"), lr=1e-2)
        for _ in range(3):
            e.update(kit.parts_of(rows, kit.weights_of(rows, "policy", "entropy")))
        after.append(kit.whole(e))
    assert all((after[0][k] == after[1][k]).all() for k in after[0])


def test_the_padding_row_of_the_embedding_gets_no_gradient_either_way(kit, model_of):
    """Embeddings with a padding_idx zero that row's gradient, also when the id is a real token."""
    rows = kit.make_rows()
    rows.tokens["response_ids"].values[::4] = 0
    weights = kit.weights_of(rows, "policy")
    packed, padded = (
        kit.engine(model_of("qwen2"), packing=p, clip_norm=0) for p in ("packed", "padded")
    )
    assert packed.net.lm.get_input_embeddings().padding_idx == 0
    for e in (packed, padded):
        e.update(kit.parts_of(rows, weights))
    a, b = kit.gradients(packed), kit.gradients(padded)
    kit.close(a, b)
    assert (a["model.embed_tokens.weight"][0] == 0).all()


@pytest.mark.parametrize("world", [1, 2])
def test_bf16_computes_low_and_keeps_float32_masters(kit, model_of, world):
    rows = kit.make_rows()
    weights = kit.weights_of(rows, "policy")

    def run(rank, world, dtype, shard):
        e = kit.engine(model_of("llama"), rank, world, dtype=dtype, lr=1e-4, shard=shard)
        norms = []
        for _ in range(3):
            parts = kit.parts_of(rows, weights, rank=rank, world=world)
            norms.append(e.update(parts)["grad_norm"].value)
        assert all(w.dtype == torch.float32 for w in (*e.layout.weights, *e.optimizer.first))
        low = e.forward(rows, [range(len(rows))], ["logprobs"])["logprobs"].values
        return norms, kit.whole(e), low

    before = kit.whole(kit.engine(model_of("llama")))
    wanted = run(0, 1, "fp32", "none")
    for shard in ("none", "full"):
        for norms, after, low in run_ranks(world, run, "bf16", shard):
            assert norms == pytest.approx(wanted[0], rel=0.05)
            assert low == pytest.approx(wanted[2], abs=0.1)
            # Steps of 1e-4 on weights of 0.02: below what bf16 weights could take up.
            moved = np.concatenate([(after[k] - before[k]).ravel() for k in before])
            right = np.concatenate([(wanted[1][k] - before[k]).ravel() for k in before])
            assert moved @ right > 0.95 * np.linalg.norm(moved) * np.linalg.norm(right)
            assert np.abs(moved).max() <= 3.1e-4


def test_dropout_is_off(kit, model_of, tmp_path):
    import json
    import shutil

    folder = shutil.copytree(model_of("gpt2"), tmp_path / "dropout")
    config = json.loads((folder / "config.json").read_text())
    config.update(resid_pdrop=0.5, embd_pdrop=0.5, attn_pdrop=0.5)
    (folder / "config.json").write_text(json.dumps(config))
    rows = kit.make_rows()
    weights = kit.weights_of(rows, "policy")
    a, b = kit.engine(str(folder), clip_norm=0), kit.engine(model_of("gpt2"), clip_norm=0)
    for e in (a, b):
        e.update(kit.parts_of(rows, weights))
    kit.close(kit.gradients(a), kit.gradients(b), rel=0)


def test_clipping_scales_to_the_limit(kit, model_of):
    rows = kit.make_rows()
    weights = kit.weights_of(rows, "policy")
    e = kit.engine(model_of("llama"), clip_norm=0.01)
    assert e.update(kit.parts_of(rows, weights))["grad_norm"].value > 0.01
    total = math.sqrt(sum(float((g**2).sum()) for g in kit.gradients(e).values()))
    assert total == pytest.approx(0.01, rel=1e-3)


def test_a_loss_of_the_wrong_shape_and_a_frozen_model_are_refused(kit, model_of):
    rows = kit.make_rows()
    e = kit.engine(model_of("llama"))

    class Mean:
        options = kit.LOSSES["policy"].options

        def __call__(self, now, x):
            return now.logprobs.mean(), {}

    e.resolve_loss = lambda ref: Mean()
    with pytest.raises(AlgorithmError, match="without reducing"):
        e.update(kit.parts_of(rows, kit.weights_of(rows, "policy")))

    class Reads:
        options = kit.LOSSES["policy"].options

        def __call__(self, now, x):
            return now.logprobs * x["ref_logprobs"], {}

    e.resolve_loss = lambda ref: Reads()
    with pytest.raises(AlgorithmError, match=r"calling loss=policy failed: KeyError.*ref_logprobs"):
        e.update(kit.parts_of(rows, kit.weights_of(rows, "policy")))
    frozen = kit.engine(model_of("llama"), trainable=False)
    with pytest.raises(EngineError, match="frozen"):
        frozen.update(kit.parts_of(rows, kit.weights_of(rows, "policy")))


def test_math_04_hand_computed_losses_for_every_micro_batch_size(kit, model_of):
    """The case's rows: 0.92857 by tokens and 1.25 by sequences, whole or one row at a time."""
    from bestiary.batch import Ragged, RowBlock

    rows = RowBlock(
        {
            "prompt_ids": Ragged.from_rows([[4], [4]], np.int64),
            "response_ids": Ragged.from_rows([[5, 6], [7, 8, 9, 10, 11]], np.int64),
            "given": Ragged.from_rows([[1.0, 3.0], [0.5] * 5], np.float64),
        }
    )

    class Given:
        options = kit.LOSSES["policy"].options

        def __call__(self, now, x):
            return x["given"] + 0 * now.logprobs, {}

    e = kit.engine(model_of("llama"))
    e.resolve_loss = lambda ref: Given()
    for weights, wanted in (([1 / 7, 1 / 7], 0.928571428571), ([1 / 4, 1 / 10], 1.25)):
        for micro in ([[0, 1]], [[0], [1]]):
            term = TermJob(ComponentRef("loss", "given"), np.array(weights))
            stats = e.update([UpdatePart(rows=rows, micro=micro, terms=[term])])
            assert stats["loss/given"].value == pytest.approx(wanted, abs=1e-12)
