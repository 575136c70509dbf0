"""LoRA: gradients by hand, merging, the base without its adapter, state, and ranks."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from bestiary.engines.fsdp.options import LoRAOptions
from bestiary.errors import ModelError
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


def test_gradients_are_those_of_a_hand_written_adapter(kit, model_of):
    rows = kit.make_rows()
    path, weights = model_of("llama"), kit.weights_of(rows, "policy")
    e = kit.engine(path, lora=LORA, lr=0.0, clip_norm=0.0)
    rng = torch.Generator().manual_seed(3)
    for name, p in e.net.named_parameters():
        if ".lora_B." in name:
            p.data.copy_(torch.randn(p.shape, generator=rng) * 0.1)
    e.layout.master  # noqa: B018 - the buffer that the parameters are views of
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
        # y = (W + s·B·A)x, so dA = s·Bᵀ·dW and dB = s·dW·Aᵀ
        assert np.allclose(grad, scale * now[twin].T @ dw, rtol=1e-3, atol=1e-6)
        assert np.allclose(found[twin], scale * dw @ now[name].T, rtol=1e-3, atol=1e-6)
        checked += 1
    assert checked == 14  # 7 linear layers in each of 2 decoder layers


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


def test_state_has_the_adapters_only_and_moves_between_world_sizes(kit, model_of, tmp_path):
    rows = kit.make_rows()
    path = model_of("llama")

    def save(rank, world):
        e = trained(kit, path, rows, rank=rank, world=world)
        e.save(tmp_path)
        return logprobs(e, rows)

    saved = run_ranks(2, save)[0]
    names = {n for file in tmp_path.glob("*.safetensors") for n in load_file(str(file))}
    assert names
    assert all(".lora_A." in n or ".lora_B." in n for n in names)
    e = kit.engine(path, lora=LORA, lr=1e-2)
    e.load(tmp_path)
    assert e.version == 3
    assert logprobs(e, rows) == pytest.approx(saved, abs=1e-6)


def test_the_adapter_loads_in_peft(kit, model_of, tmp_path):
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    rows = kit.make_rows()
    path = model_of("llama")
    e = trained(kit, path, rows)
    e.export_adapter(tmp_path)
    assert json.loads((tmp_path / "adapter_config.json").read_text())["r"] == 4
    tuned = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(path), tmp_path)
    merged = tuned.merge_and_unload().state_dict()
    for name, x in kit.whole(e).items():
        assert np.allclose(merged[name].numpy(), x, atol=1e-6), name


def test_a_value_head_is_trained_whole(kit, model_of):
    rows = kit.make_rows()
    e = trained(kit, model_of("llama"), rows, head="value")
    assert np.abs(kit.whole(e)["value_head.linear.weight"]).max() > 0


def test_bf16_keeps_float32_masters_of_the_adapters(kit, model_of):
    rows = kit.make_rows()
    e = trained(kit, model_of("llama"), rows, dtype="bf16")
    assert {w.dtype for w in e.layout.weights} == {torch.float32}
    kinds = {p.dtype for n, p in e.net.named_parameters()}
    assert kinds == {torch.bfloat16}
    assert np.isfinite(logprobs(e, rows)).all()


def test_a_frozen_model_has_no_adapter(kit, model_of):
    e = kit.engine(model_of("llama"), lora=LORA, trainable=False)
    assert not any("lora" in n for n, _ in e.net.named_parameters())


def test_targets_that_are_not_there_are_one_clear_error(kit, model_of):
    with pytest.raises(ModelError, match="found nothing to adapt"):
        kit.engine(model_of("llama"), lora=LoRAOptions(targets=("no_such_layer",)))


def test_options_without_meaning_are_refused():
    for wrong in ({"rank": 0}, {"alpha": 0}, {"targets": ()}):
        with pytest.raises(ValueError, match="lora"):
            LoRAOptions(**wrong)
