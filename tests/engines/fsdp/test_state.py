"""Weights leave and come back: checkpoints for any number of ranks, exports, saved models."""

import json

import numpy as np
import pytest
import torch

from bestiary.errors import CheckpointError, EngineError
from bestiary.models.files import VALUE_HEAD_FILE
from bestiary.models.loading import load_causal_lm
from bestiary.models.saving import save_model
from bestiary.testing.ranks import run_ranks


def trained(kit, path, rank=0, world=1, steps=2, **options):
    rows = kit.make_rows()
    e = kit.engine(path, rank, world, lr=1e-2, **options)
    loss = "value" if options.get("head") == "value" else "policy"
    weights = kit.weights_of(rows, loss)
    for _ in range(steps):
        e.update(kit.parts_of(rows, weights, rank=rank, world=world))
    return e


def moments(e):
    """Weights and moments of this rank's pieces, in place in whole arrays (NaN elsewhere)."""
    from bestiary.engines.fsdp.state import _parts

    out = {}
    for piece in e.layout.pieces():
        for kind, part in _parts(piece, e.optimizer).items():
            array = np.full(piece.whole, np.nan, dtype=np.float32)
            array[piece.start : piece.start + len(part)] = part.numpy()
            out[f"{kind}/{piece.name}"] = array
    return out


def together(results):
    """Whole arrays from what each rank has; every row must be somewhere."""
    whole = {}
    for name in results[0]:
        stack = np.stack([r[name] for r in results])
        whole[name] = np.nanmax(stack, 0)
        assert not np.isnan(whole[name]).any()
    return whole


@pytest.mark.parametrize("head", ["lm", "value"])
def test_a_state_goes_from_2_to_1_to_4_ranks_bit_for_bit(kit, model_of, tmp_path, head):
    path = model_of("qwen2")

    def first(rank, world):
        e = trained(kit, path, rank, world, shard="full", head=head)
        e.save(tmp_path / "two")
        return moments(e)

    def move(rank, world, source, target, shard):
        e = kit.engine(path, rank, world, shard=shard, lr=1e-2, head=head)
        e.load(tmp_path / source)
        assert e.version == 2
        assert all(float(s) == 2 for s in e.optimizer.steps)
        if target:
            e.save(tmp_path / target)
        return moments(e)

    wanted = together(run_ranks(2, first))
    assert any(np.abs(v).max() > 0 for k, v in wanted.items() if k.startswith("exp_avg_sq"))
    for world, source, target, shard in (
        (1, "two", "one", "none"),
        (4, "one", "four", "full"),
        (2, "four", "", "none"),
    ):
        found = together(run_ranks(world, move, source, target, shard))
        assert found.keys() == wanted.keys()
        for name, array in wanted.items():
            np.testing.assert_array_equal(found[name], array, err_msg=name)


def test_going_on_from_a_state_equals_going_on(kit, model_of, tmp_path):
    path = model_of("llama")
    rows = kit.make_rows(seed=2)
    weights = kit.weights_of(rows, "policy")
    e = trained(kit, path, lr_schedule="linear", total_steps=6, warmup_steps=2)
    e.save(tmp_path)
    again = kit.engine(path, lr=1e-2, lr_schedule="linear", total_steps=6, warmup_steps=2)
    again.load(tmp_path)
    stats = [x.update(kit.parts_of(rows, weights)) for x in (e, again)]
    assert stats[0]["lr"].value == stats[1]["lr"].value > 0
    a, b = kit.whole(e), kit.whole(again)
    assert all((a[k] == b[k]).all() for k in a)


def test_what_is_missing_in_a_state_is_named(kit, model_of, tmp_path):
    e = trained(kit, model_of("llama"))
    with pytest.raises(CheckpointError, match=r"engine\.json"):
        e.load(tmp_path)
    e.save(tmp_path)
    assert not list(tmp_path.glob("*.pt"))
    with pytest.raises(CheckpointError, match="has shape"):
        kit.engine(model_of("qwen3")).load(tmp_path)
    listed = json.loads((tmp_path / "rank_0.json").read_text())
    del listed["rows"]["model.norm.weight"]
    (tmp_path / "rank_0.json").write_text(json.dumps(listed))
    with pytest.raises(CheckpointError, match=r"32 of 32 rows of model\.norm\.weight are missing"):
        e.load(tmp_path)
    (tmp_path / "rank_0.safetensors").write_bytes(b"short")
    with pytest.raises(CheckpointError, match="cannot be read"):
        e.load(tmp_path)


def test_a_frozen_state_has_no_optimizer(kit, model_of, tmp_path):
    frozen = kit.engine(model_of("llama"), trainable=False)
    frozen.save(tmp_path)
    kit.engine(model_of("llama"), trainable=False).load(tmp_path)
    with pytest.raises(CheckpointError, match="weights only"):
        kit.engine(model_of("llama")).load(tmp_path)


def test_export_has_tied_parameters_once_and_is_the_same_on_every_rank(kit, model_of):
    path = model_of("llama")
    names = {n for n, _ in load_causal_lm(path).named_parameters()}
    assert "lm_head.weight" not in names

    def run(rank, world, shard):
        e = trained(kit, path, rank, world, shard=shard)
        e.update(kit.parts_of(kit.make_rows(), {"policy": np.zeros(13)}, rank=rank, world=world))
        return kit.whole(e), sum(t.numel() for b in e.export() for t in b.values())

    wanted, count = run(0, 1, "none")
    assert wanted.keys() == names
    assert count == kit.engine(path).parameter_count
    for found, _ in run_ranks(2, run, "full"):
        kit.close(found, wanted, rel=1e-3)


def test_replicated_weights_are_exported_without_a_copy(kit, model_of):
    e = kit.engine(model_of("llama"))
    live = {n.removeprefix("lm."): p.data_ptr() for n, p in e.net.named_parameters()}
    for bucket in e.export():
        for name, tensor in bucket.items():
            assert tensor.data_ptr() == live[name]
    assert all(t.dtype == torch.bfloat16 for b in e.export("bf16") for t in b.values())
    with pytest.raises(EngineError, match="'fp8'"):
        next(e.export("fp8"))


def test_buckets_hold_what_fits():
    from bestiary.engines.fsdp.layout import buckets

    sizes = (3, 4, 20, 1)
    tensors = ((str(i), torch.zeros(n)) for i, n in enumerate(sizes))
    assert [list(b) for b in buckets(tensors, 32)] == [["0", "1"], ["2"], ["3"]]


@pytest.mark.parametrize("arch", ["llama", "gpt2"])
@pytest.mark.parametrize("limit", [2 << 30, 20_000])
def test_a_saved_model_loads_with_transformers_and_its_tokenizer(
    kit, model_of, tmp_path, arch, limit
):
    from transformers import AutoTokenizer

    e = trained(kit, model_of(arch))
    (tmp_path / "model-00009-of-00009.safetensors").write_bytes(b"stale")
    files = save_model(tmp_path, model_of(arch), e.export(), max_shard_bytes=limit)
    assert (len(files) > 1) == (limit < 1 << 30)
    again = load_causal_lm(tmp_path)
    for name, p in again.named_parameters():
        assert (p.detach().numpy() == kit.whole(e)[name]).all()
    assert AutoTokenizer.from_pretrained(tmp_path)("a+b")["input_ids"]


def test_a_saved_critic_keeps_its_head(kit, model_of, tmp_path):
    e = trained(kit, model_of("llama"), head="value")
    save_model(tmp_path, model_of("llama"), e.export())
    assert (tmp_path / VALUE_HEAD_FILE).is_file()
    again = kit.engine(str(tmp_path), head="value")
    a, b = kit.whole(e), kit.whole(again)
    assert a.keys() == b.keys()
    assert all((a[k] == b[k]).all() for k in a)
    assert np.abs(a["value_head.linear.weight"]).max() > 0
    load_causal_lm(tmp_path)


def test_a_model_is_saved_in_bf16(kit, model_of, tmp_path):
    e = kit.engine(model_of("llama"))
    save_model(tmp_path, model_of("llama"), e.export(), dtype="bf16")
    assert json.loads((tmp_path / "config.json").read_text())["dtype"] == "bfloat16"
    assert load_causal_lm(tmp_path, dtype=torch.bfloat16).dtype == torch.bfloat16
