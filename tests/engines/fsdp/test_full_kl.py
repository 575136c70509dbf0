"""A loss on the KL over the vocabulary: against plain softmaxes, in every layout."""

import numpy as np
import pytest
import torch

from bestiary.engines.fsdp.options import LoRAOptions
from bestiary.errors import EngineError
from bestiary.protocols import LossOptions
from bestiary.testing.ranks import run_ranks

LORA = LoRAOptions(rank=4, alpha=8)


class KLOptions(LossOptions):
    outputs = frozenset({"kl"})


class KL:
    options = KLOptions()

    def __call__(self, now, x):
        return now.need("kl"), {}


@pytest.fixture(scope="module")
def resolved(kit):
    kit.LOSSES["kl_full"] = KL()
    return kit


def moved(kit, path, rows, rank=0, world=1, **options):
    """An engine two steps away from the base that it is compared with."""
    base_options = {k: v for k, v in options.items() if k != "lora"}
    e = kit.engine(path, rank, world, lr=1e-2, **options)
    weights = kit.weights_of(rows, "policy")
    for _ in range(2):
        e.update(kit.parts_of(rows, weights, rank=rank, world=world))
    if "lora" not in options:
        e.reference = kit.engine(path, rank, world, trainable=False, **base_options)
    return e


def plain(kit, e, base, rows, weights, temperature):
    """(loss, gradients) of Σ w·KL with whole logits, in float64."""
    loss = torch.zeros((), dtype=torch.float64)
    mask = rows.tokens["response_mask"]
    for i in range(len(rows)):
        prompt, response = (rows.tokens[n].row(i) for n in ("prompt_ids", "response_ids"))
        if not len(response):
            continue
        ids = torch.from_numpy(np.concatenate([prompt, response]))[None]
        start, stop = len(prompt) - 1, ids.shape[1] - 1
        with torch.no_grad():
            q = base.net.lm(ids).logits[0, start:stop].double() / temperature
        p = e.net.lm(ids).logits[0, start:stop].double() / temperature
        p, q = p.log_softmax(-1), q.log_softmax(-1)
        live = torch.from_numpy(mask.row(i).astype(bool))
        loss = loss + float(weights[i]) * ((p.exp() * (p - q)).sum(-1) * live).sum()
    params = {n: x for n, x in e.net.named_parameters() if x.requires_grad}
    grads = torch.autograd.grad(loss, list(params.values()), allow_unused=True)
    found = {
        n.removeprefix("lm."): np.zeros(x.shape) if g is None else g.numpy()
        for (n, x), g in zip(params.items(), grads, strict=True)
    }
    return float(loss.detach()), found


@pytest.mark.parametrize("packing", ["packed", "padded"])
@pytest.mark.parametrize(("arch", "chunk"), [("llama", 1 << 24), ("llama", 2000), ("gpt2", 2000)])
def test_value_and_gradient_are_those_of_plain_softmaxes(resolved, model_of, arch, packing, chunk):
    kit, rows = resolved, resolved.make_rows()
    weights = kit.weights_of(rows, "kl_full")
    e = moved(kit, model_of(arch), rows, packing=packing, logits_chunk=chunk, fast_linear=False)
    base = kit.engine(model_of(arch), trainable=False)
    wanted, grads = plain(kit, e, base, rows, weights["kl_full"], 0.8)
    stats = e.update(kit.parts_of(rows, weights, temperature=0.8))
    assert wanted > 1e-3
    assert stats["loss/kl_full"].value == pytest.approx(wanted, rel=1e-4)
    kit.close(kit.gradients(e), grads, rel=1e-4)


def test_under_lora_the_base_is_the_reference(resolved, model_of):
    kit, rows = resolved, resolved.make_rows()
    weights = kit.weights_of(rows, "kl_full")
    e = moved(kit, model_of("llama"), rows, lora=LORA)
    base = kit.engine(model_of("llama"), trainable=False)
    wanted, _ = plain(kit, e, base, rows, weights["kl_full"], 1.0)
    stats = e.update(kit.parts_of(rows, weights))
    assert wanted > 1e-5
    assert stats["loss/kl_full"].value == pytest.approx(wanted, rel=1e-3)


def test_ranks_and_sharding_change_nothing(resolved, model_of):
    kit, rows = resolved, resolved.make_rows()
    weights = kit.weights_of(rows, "kl_full", "policy")

    def run(rank, world, shard):
        e = moved(kit, model_of("qwen2"), rows, rank, world, shard=shard)
        stats = e.update(kit.parts_of(rows, weights, rank=rank, world=world))
        stat = stats["loss/kl_full"]
        return kit.gradients(e), stat.total, stat.count

    ((alone, total, _),) = run_ranks(1, run, "none")
    for shard in ("none", "full"):
        found = run_ranks(2, run, shard)
        assert sum(f[1] for f in found) == pytest.approx(total, rel=1e-4)
        for grads, _, _ in found:
            kit.close(grads, alone, rel=1e-4)


def test_without_a_reference_it_says_what_is_missing(resolved, model_of):
    kit, rows = resolved, resolved.make_rows()
    e = kit.engine(model_of("llama"))
    with pytest.raises(EngineError, match="no reference is in this process") as caught:
        e.update(kit.parts_of(rows, kit.weights_of(rows, "kl_full")))
    assert "placement=colocate" in caught.value.hint
