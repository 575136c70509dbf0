"""LoRA: gradients by hand, merging, the base without its adapter, state, and ranks."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from bestiary.engines.fsdp.lora import Adapter, merged
from bestiary.engines.fsdp.options import LoRAOptions
from bestiary.errors import CheckpointError, EngineError, ModelError
from bestiary.models.resolve import resolve_model
from bestiary.models.tiny import build_tiny
from bestiary.testing.ranks import run_ranks

LORA = LoRAOptions(rank=4, alpha=8)


def trained(kit, path, rows, steps=3, rank=0, world=1, **options):
    loss = "value" if options.get("head") == "value" else "policy"
    e = kit.engine(path, rank, world, lr=1e-2, lora=LORA, **options)
    weights = kit.weights_of(rows, loss)
    for _ in range(steps):
        e.update(kit.parts_of(rows, weights, rank=rank, world=world))
    return e


def logprobs(e, rows, **kwargs):
    return e.forward(rows, [range(len(rows))], ["logprobs"], **kwargs)["logprobs"].values


@pytest.mark.parametrize("arch", ["llama", "gpt2"])
def test_it_starts_as_the_base_and_trains_the_adapters_only(kit, model_of, arch):
    rows = kit.make_rows()
    base = kit.engine(model_of(arch))
    e = kit.engine(model_of(arch), lora=LORA, lr=1e-2)
    assert logprobs(e, rows) == pytest.approx(logprobs(base, rows), abs=1e-6)
    before = dict(kit.whole(base))
    trainable = sum(p.numel() for p in e.net.parameters() if p.requires_grad)
    assert 0 < trainable < 0.5 * base.parameter_count
    assert sum(w.numel() for w in e.layout.weights) < 0.6 * base.parameter_count
    e.update(kit.parts_of(rows, kit.weights_of(rows, "policy")))
    for name, p in e.net.named_parameters():
        plain = name.removeprefix("lm.").replace(".base_layer.", ".")
        if not p.requires_grad:
            assert np.array_equal(p.detach().numpy(), before[plain]), name
    assert np.abs(logprobs(e, rows) - logprobs(base, rows)).max() > 1e-4


@pytest.mark.parametrize("arch", ["llama", "gpt2"])
@pytest.mark.parametrize("packing", ["packed", "padded"])
def test_without_its_adapter_it_is_the_base_to_the_last_bit(kit, model_of, arch, packing):
    rows = kit.make_rows()
    base = kit.engine(model_of(arch), packing=packing)
    e = trained(kit, model_of(arch), rows, packing=packing)
    assert np.array_equal(logprobs(e, rows, adapter="off"), logprobs(base, rows))
    assert not np.array_equal(logprobs(e, rows), logprobs(base, rows))


@pytest.mark.parametrize("arch", ["llama", "gpt2", "qwen2"])
def test_exported_weights_are_the_merged_ones(kit, model_of, arch, tmp_path):
    from bestiary.models.saving import save_model

    rows = kit.make_rows()
    e = trained(kit, model_of(arch), rows)
    base = kit.whole(kit.engine(model_of(arch)))
    merged = kit.whole(e)
    assert {n: x.shape for n, x in merged.items()} == {n: x.shape for n, x in base.items()}
    save_model(tmp_path, model_of(arch), e.export())
    alone = kit.engine(str(tmp_path))
    assert logprobs(alone, rows) == pytest.approx(logprobs(e, rows), abs=2e-5)


def test_an_output_layer_of_its_own_can_be_adapted(kit, model_of):
    rows = kit.make_rows()
    options = LoRAOptions(rank=4, targets=("all-linear", "lm_head"))
    e = kit.engine(model_of("qwen2"), lora=options, lr=1e-2)
    for _ in range(2):
        e.update(kit.parts_of(rows, kit.weights_of(rows, "policy")))
    base, merged = kit.whole(kit.engine(model_of("qwen2"))), kit.whole(e)
    assert merged.keys() == base.keys()
    assert np.abs(merged["lm_head.weight"] - base["lm_head.weight"]).max() > 1e-5
    plain = kit.engine(model_of("qwen2"))
    for name, p in plain.net.named_parameters():
        p.data.copy_(torch.from_numpy(merged[name.removeprefix("lm.")]))
    assert logprobs(plain, rows) == pytest.approx(logprobs(e, rows), abs=1e-5)


@pytest.mark.parametrize(("arch", "layers"), [("llama", 14), ("gpt2", 8)])
@pytest.mark.parametrize("how", [{}, {"packing": "padded"}, {"activation_checkpointing": True}])
def test_gradients_are_those_of_a_hand_written_adapter(kit, model_of, arch, layers, how):
    rows = kit.make_rows()
    path, weights = model_of(arch), kit.weights_of(rows, "policy")
    e = kit.engine(path, lora=LORA, lr=0.0, clip_norm=0.0, **how)
    rng = torch.Generator().manual_seed(3)
    for name, p in e.net.named_parameters():
        if ".lora_B." in name:
            p.data.copy_(torch.randn(p.shape, generator=rng) * 0.1)
    e.update(kit.parts_of(rows, weights))
    found = kit.gradients(e)
    merged = kit.whole(e)
    plain = kit.engine(path, lr=0.0, clip_norm=0.0)
    for name, p in plain.net.named_parameters():
        p.data.copy_(torch.from_numpy(merged[name.removeprefix("lm.")]))
    plain.update(kit.parts_of(rows, weights))
    dense, scale, checked = kit.gradients(plain), LORA.alpha / LORA.rank, 0
    for name, grad in found.items():
        if ".lora_A." not in name:
            continue
        layer = name.partition(".lora_A.")[0]
        twin = name.replace(".lora_A.", ".lora_B.")
        now = {n.removeprefix("lm."): p.detach().numpy() for n, p in e.net.named_parameters()}
        dw = dense[f"{layer}.weight"]
        dw = dw.T if arch == "gpt2" else dw  # Conv1D keeps [in, out]
        # y = (W + s·B·A)x, so dA = s·Bᵀ·dW and dB = s·dW·Aᵀ
        assert np.allclose(grad, scale * now[twin].T @ dw, rtol=1e-3, atol=1e-6)
        assert np.allclose(found[twin], scale * dw @ now[name].T, rtol=1e-3, atol=1e-6)
        checked += 1
    assert checked == layers  # in 2 decoder layers


@pytest.mark.parametrize("shard", ["none", "full"])
def test_two_ranks_agree_with_one(kit, model_of, shard):
    rows = kit.make_rows()
    path = model_of("llama")

    def run(rank, world):
        e = trained(kit, path, rows, rank=rank, world=world, shard=shard)
        return kit.whole(e), logprobs(e, rows), logprobs(e, rows, adapter="off")

    ((weights, wanted, off),) = run_ranks(1, run)
    for found, seen, without in run_ranks(2, run):
        kit.close(found, weights, rel=1e-4)
        assert seen == pytest.approx(wanted, abs=1e-3)
        assert without == pytest.approx(off, abs=1e-5)


@pytest.mark.parametrize(("first", "then"), [("none", "full"), ("full", "none")])
def test_state_has_the_adapters_only_and_moves_between_world_sizes(
    kit, model_of, tmp_path, first, then
):
    rows = kit.make_rows()
    path = model_of("llama")

    def save(rank, world):
        e = trained(kit, path, rows, rank=rank, world=world, shard=first)
        e.save(tmp_path / "two")
        return logprobs(e, rows)

    def move(rank, world):
        e = kit.engine(path, rank, world, lora=LORA, lr=1e-2, shard=then)
        e.load(tmp_path / "two")
        e.save(tmp_path / "three")
        return logprobs(e, rows)

    saved = run_ranks(2, save)[0]
    files = list((tmp_path / "two").glob("*.safetensors"))
    names = {n for file in files for n in load_file(str(file))}
    assert {n.partition("/")[0] for n in names} == {"weight", "exp_avg", "exp_avg_sq"}
    assert all(".lora_A." in n or ".lora_B." in n for n in names)
    whole = 4 * kit.engine(path).parameter_count
    assert sum(file.stat().st_size for file in files) < 0.6 * 3 * whole
    assert run_ranks(3, move)[2] == pytest.approx(saved, abs=1e-6)
    e = kit.engine(path, lora=LORA, lr=1e-2)
    e.load(tmp_path / "three")
    assert e.version == 3
    assert logprobs(e, rows) == pytest.approx(saved, abs=1e-6)
    alone = trained(kit, path, rows)
    for engine in (e, alone):
        engine.update(kit.parts_of(rows, kit.weights_of(rows, "policy")))
    assert logprobs(e, rows) == pytest.approx(logprobs(alone, rows), abs=1e-3)


def test_a_state_belongs_to_its_base_and_its_adapter(kit, model_of, tmp_path):
    rows = kit.make_rows()
    path = model_of("llama")
    trained(kit, path, rows, steps=1).save(tmp_path / "lora")
    kit.engine(path).save(tmp_path / "whole")
    other = str(build_tiny(tmp_path / "base", replace(kit.ARCHS["llama"], seed=5)))
    cases = [
        (other, LORA, "lora", "other base weights"),
        (path, LoRAOptions(rank=4, alpha=16), "lora", "alpha=8 there and 16 here"),
        (path, LoRAOptions(rank=4, alpha=8, targets=("q_proj",)), "lora", "targets="),
        (path, None, "lora", "holds a LoRA adapter; the model trains whole weights"),
        (path, LORA, "whole", "holds whole weights; the model trains a LoRA adapter"),
    ]
    for base, options, folder, message in cases:
        with pytest.raises(CheckpointError, match=message):
            kit.engine(base, lora=options).load(tmp_path / folder)
    moved = shutil.copytree(path, tmp_path / "elsewhere")
    kit.engine(str(moved), lora=LORA).load(tmp_path / "lora")


@pytest.mark.parametrize(("arch", "ends"), [("llama", 7), ("gpt2", 3)])
def test_the_adapter_loads_in_peft(kit, model_of, tmp_path, arch, ends):
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    rows = kit.make_rows()
    path = model_of(arch)
    e = trained(kit, path, rows)
    e.export_adapter(tmp_path)
    written = json.loads((tmp_path / "adapter_config.json").read_text())
    assert (written["r"], written["lora_alpha"], written["lora_dropout"]) == (4, 8, 0.0)
    assert written["base_model_name_or_path"] == path
    assert len(written["target_modules"]) == ends
    assert written["fan_in_fan_out"] == (arch == "gpt2")
    tuned = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(path), tmp_path)
    merged = tuned.merge_and_unload().state_dict()
    for name, x in kit.whole(e).items():
        assert np.allclose(merged[name].numpy(), x, atol=1e-6), name


@pytest.mark.parametrize("shard", ["none", "full"])
def test_the_adapter_of_several_ranks_is_that_of_one(kit, model_of, tmp_path, shard):
    rows = kit.make_rows()
    path = model_of("llama")
    trained(kit, path, rows).export_adapter(tmp_path / "one")

    def run(rank, world):
        trained(kit, path, rows, rank=rank, world=world, shard=shard).export_adapter(
            tmp_path / "two"
        )

    run_ranks(2, run)
    one, two = (load_file(str(tmp_path / n / "adapter_model.safetensors")) for n in ("one", "two"))
    kit.close(*({n: x.numpy() for n, x in found.items()} for found in (two, one)), rel=1e-3)


@pytest.mark.parametrize("head", ["value", "lm+value"])
def test_a_value_head_is_trained_whole_and_stays_with_the_adapter(kit, model_of, tmp_path, head):
    rows = kit.make_rows()
    names = ["value"] if head == "value" else ["policy", "value"]
    e = kit.engine(model_of("llama"), lora=LORA, lr=1e-2, head=head)
    for _ in range(3):
        e.update(kit.parts_of(rows, kit.weights_of(rows, *names)))
    assert np.abs(kit.whole(e)["value_head.linear.weight"]).max() > 0
    e.export_adapter(tmp_path / "adapter")
    folder = resolve_model(str(tmp_path / "adapter"), cache=tmp_path / "cache")
    again = kit.engine(str(folder), head=head)
    outputs = ["values"] if head == "value" else ["logprobs", "values"]
    micro = [range(len(rows))]
    wanted = e.forward(rows, micro, outputs)
    for name, column in again.forward(rows, micro, outputs).items():
        assert column.values == pytest.approx(wanted[name].values, abs=2e-5), name


@pytest.mark.parametrize("shard", ["none", "full"])
def test_bf16_keeps_float32_masters_of_the_adapters(kit, model_of, shard):
    rows = kit.make_rows()

    def run(rank, world):
        e = trained(kit, model_of("llama"), rows, rank=rank, world=world, dtype="bf16", shard=shard)
        assert {w.dtype for w in (*e.layout.weights, *e.optimizer.first)} == {torch.float32}
        assert {x.dtype for bucket in e.export() for x in bucket.values()} == {torch.float32}
        return {p.dtype for p in e.net.parameters()}, logprobs(e, rows)

    wanted = logprobs(trained(kit, model_of("llama"), rows), rows)
    for kinds, found in run_ranks(2, run):
        assert kinds == {torch.bfloat16 if shard == "none" else torch.float32}
        assert found == pytest.approx(wanted, abs=0.15)


def test_a_frozen_model_has_no_adapter(kit, model_of):
    e = kit.engine(model_of("llama"), lora=LORA, trainable=False)
    assert not any("lora" in n for n, _ in e.net.named_parameters())


@pytest.mark.parametrize(
    ("arch", "targets", "message"),
    [
        ("llama", ("no_such_layer",), r"is no layer of LlamaForCausalLM[\s\S]*down_proj.*v_proj"),
        ("llama", ("q_proj", "proj"), r"'proj' is no layer"),
        ("llama", ("norm",), "'norm' is a LlamaRMSNorm.*linear layer is wanted"),
        ("qwen2", ("embed_tokens",), "'embed_tokens' is a Embedding"),
        ("llama", ("lm_head",), "weight of 'lm_head' is tied to another layer"),
        ("gpt2", ("lm_head",), "weight of 'lm_head' is tied to another layer"),
    ],
)
def test_targets_that_cannot_be_adapted_are_one_clear_error(kit, model_of, arch, targets, message):
    with pytest.raises(ModelError, match=message):
        kit.engine(model_of(arch), lora=LoRAOptions(targets=targets))


def test_an_export_without_its_adapter_is_an_error_not_the_base():
    adapter = Adapter(LORA, None, frozenset(), "")
    parts = [("x.base_layer.weight", torch.ones(2, 2)), ("x.lora_A.default.weight", torch.ones(1))]
    with pytest.raises(EngineError, match="adapter of x is missing"):
        list(merged(iter(parts), adapter))


def test_options_without_meaning_are_refused():
    for wrong in ({"rank": 0}, {"alpha": 0}, {"targets": ()}):
        with pytest.raises(ValueError, match="lora"):
            LoRAOptions(**wrong)
