"""Gradients do not depend on ranks, sharding, micro-batches or packing."""

import pytest

from bestiary.testing.ranks import run_ranks

TERMS = ("policy", "entropy")


def one(kit, path, rows, weights, rank, world, budget, **options):
    e = kit.engine(path, rank, world, lr=1e-3, clip_norm=0, **options)
    stats = e.update(kit.parts_of(rows, weights, rank=rank, world=world, budget=budget))
    return kit.gradients(e), kit.whole(e), stats


@pytest.fixture(scope="module")
def reference(kit, model_of):
    """Padded, one rank, one micro-batch."""
    made = {}

    def get(arch):
        if arch not in made:
            rows = kit.make_rows()
            weights = kit.weights_of(rows, *TERMS)
            e = (0, 1, 10_000)
            result = one(
                kit, model_of(arch), rows, weights, *e, packing="padded", fast_linear=False
            )
            made[arch] = (rows, weights, result)
        return made[arch]

    return get


@pytest.mark.parametrize("budget", [1, 40, 10_000])
@pytest.mark.parametrize("arch", ["llama", "qwen2", "qwen3", "gpt2"])
def test_packed_equals_padded_for_any_micro_batch_size(kit, model_of, reference, arch, budget):
    rows, weights, (grads, after, stats) = reference(arch)
    found, weights_after, ours = one(kit, model_of(arch), rows, weights, 0, 1, budget)
    kit.close(found, grads)
    kit.close(weights_after, after)
    for name in ("loss/policy", "loss/entropy", "grad_norm", "seen", "update/tokens"):
        assert ours[name].value == pytest.approx(stats[name].value, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("shard", ["none", "full"])
@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("arch", ["llama", "gpt2"])
def test_ranks_and_sharding_change_nothing(kit, model_of, reference, arch, world, shard):
    """DIST-01, MATH-04: sums over micro-batches and ranks with global weights, no averages."""
    rows, weights, (grads, after, stats) = reference(arch)

    def run(rank, world):
        return one(kit, model_of(arch), rows, weights, rank, world, 30, shard=shard)

    results = run_ranks(world, run)
    for found, weights_after, _ in results:
        kit.close(found, grads)
        kit.close(weights_after, after)
    total = sum((r[2]["loss/policy"] for r in results[1:]), results[0][2]["loss/policy"])
    assert total.value == pytest.approx(stats["loss/policy"].value, rel=1e-5, abs=1e-6)
    assert results[0][2]["grad_norm"].value == pytest.approx(stats["grad_norm"].value, rel=1e-5)


@pytest.mark.parametrize("options", [{"activation_checkpointing": True}, {"logits_chunk": 2000}])
@pytest.mark.parametrize("arch", ["llama", "gpt2"])
def test_recomputation_changes_nothing(kit, model_of, reference, arch, options):
    rows, weights, (grads, _, _) = reference(arch)
    found, _, _ = one(kit, model_of(arch), rows, weights, 0, 1, 60, **options)
    kit.close(found, grads)


def test_recomputation_under_full_sharding(kit, model_of, reference):
    rows, weights, (grads, _, _) = reference("llama")

    def run(rank, world):
        options = {"shard": "full", "activation_checkpointing": True, "logits_chunk": 2000}
        return one(kit, model_of("llama"), rows, weights, rank, world, 30, **options)[0]

    for found in run_ranks(2, run):
        kit.close(found, grads)


def test_five_steps_are_equal_and_ranks_stay_bit_equal(kit, model_of):
    rows = kit.make_rows()
    weights = kit.weights_of(rows, *TERMS)

    def run(rank, world, shard, packing, budget):
        e = kit.engine(model_of("llama"), rank, world, lr=3e-3, shard=shard, packing=packing)
        norms = []
        for _ in range(5):
            parts = kit.parts_of(rows, weights, rank=rank, world=world, budget=budget)
            norms.append(e.update(parts)["grad_norm"].value)
        return norms, kit.whole(e)

    norms, after = run(0, 1, "none", "padded", 10_000)
    for world, shard in ((1, "none"), (2, "none"), (2, "full"), (4, "full")):
        results = run_ranks(world, run, shard, "packed", 40)
        for found, weights_after in results:
            assert found == pytest.approx(norms, rel=1e-4)
            # AdamW divides by the root of the second moment, which magnifies rounding where
            # gradients are near 0.
            kit.close(weights_after, after, rel=2e-3)
            assert all((weights_after[k] == results[0][1][k]).all() for k in after)


def test_terms_add_up(kit, model_of):
    rows = kit.make_rows()
    weights = kit.weights_of(rows, *TERMS)
    both = one(kit, model_of("llama"), rows, weights, 0, 1, 40)[0]
    alone = [
        one(kit, model_of("llama"), rows, {name: weights[name]}, 0, 1, 40)[0] for name in TERMS
    ]
    kit.close({k: alone[0][k] + alone[1][k] for k in both}, both)


def test_parts_add_up(kit, model_of):
    rows, other = kit.make_rows(), kit.make_rows(seed=5)
    w, v = kit.weights_of(rows, "policy"), kit.weights_of(other, "policy")
    e = kit.engine(model_of("llama"), clip_norm=0)
    stats = e.update([*kit.parts_of(rows, w), *kit.parts_of(other, v)])
    alone = [one(kit, model_of("llama"), r, x, 0, 1, 40) for r, x in ((rows, w), (other, v))]
    both = kit.gradients(e)
    kit.close({k: alone[0][0][k] + alone[1][0][k] for k in both}, both)
    assert stats["loss/policy"].value == pytest.approx(
        sum(a[2]["loss/policy"].value for a in alone), abs=1e-6
    )


def test_value_model(kit, model_of):
    rows = kit.make_rows()
    weights = kit.weights_of(rows, "value")

    def run(rank, world, shard, packing):
        e = kit.engine(
            model_of("qwen2"), rank, world, head="value", lr=1e-2, shard=shard, packing=packing
        )
        for _ in range(2):  # the head starts at 0 and hides the body's gradient once
            e.update(kit.parts_of(rows, weights, rank=rank, world=world))
        return kit.gradients(e), e.forward(rows, [range(len(rows))], ["values"])["values"].values

    grads, values = run(0, 1, "none", "padded")
    assert abs(grads["model.layers.0.mlp.up_proj.weight"]).max() > 0
    for world, shard in ((1, "none"), (2, "full")):
        for found, seen in run_ranks(world, run, shard, "packed"):
            kit.close(found, grads, rel=1e-4)
            assert seen == pytest.approx(values, rel=1e-3, abs=1e-5)
