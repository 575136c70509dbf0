"""An adapter's folder is a model: its base with the adapter merged in float32."""

import json
import shutil
import warnings

import numpy as np
import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from bestiary.errors import ModelError
from bestiary.models.loading import load_causal_lm
from bestiary.models.resolve import resolve_model
from bestiary.models.tiny import TinyOptions, build_tiny
from bestiary.models.tokenizer import Tokenizer

IDS = torch.tensor([[5, 9, 40, 7, 120, 3]])


@pytest.fixture(scope="module", params=["llama", "gpt2", "qwen2"])
def base(request, tmp_path_factory):
    options = TinyOptions(
        arch=request.param, hidden=32, layers=2, heads=4, tied=request.param != "qwen2"
    )
    return build_tiny(tmp_path_factory.mktemp(request.param), options)


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return build_tiny(
        tmp_path_factory.mktemp("base"), TinyOptions(hidden=32, layers=1, heads=4, tied=True)
    )


def adapt(base, folder, **options):
    """Write a random adapter as peft does; returns the model that it makes."""
    torch.manual_seed(1)
    options = {"r": 4, "lora_alpha": 6, "target_modules": "all-linear", **options}
    options |= {"init_lora_weights": False, "task_type": "CAUSAL_LM"}
    lm = AutoModelForCausalLM.from_pretrained(base)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*(tie_word_embeddings|save_embedding_layers)")
        tuned = get_peft_model(lm, LoraConfig(**options))
        tuned.save_pretrained(folder)
    return tuned.eval()


def edit(folder, **changes):
    file = folder / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


@pytest.fixture
def adapter(llama, tmp_path):
    adapt(llama, tmp_path / "adapter")
    return tmp_path / "adapter"


@pytest.mark.parametrize("options", [{}, {"use_rslora": True}, {"use_dora": True}])
def test_an_adapter_is_merged_into_its_base(base, tmp_path, options):
    conv = "gpt2" in str(base)
    tuned = adapt(base, tmp_path / "adapter", fan_in_fan_out=conv, **options)
    folder = resolve_model(str(tmp_path / "adapter"), cache=tmp_path / "cache")
    merged, plain = load_causal_lm(folder), load_causal_lm(base)
    assert merged.dtype == torch.float32
    with torch.no_grad():
        found, wanted = merged(IDS).logits, tuned(IDS).logits
        assert found.numpy() == pytest.approx(wanted.numpy(), abs=1e-5)
        assert (found - plain(IDS).logits).abs().max() > 1e-2
    before, after = (dict(m.named_parameters()) for m in (plain, merged))
    assert before.keys() == after.keys()
    assert Tokenizer(folder).encode_prompt("a+b") == Tokenizer(base).encode_prompt("a+b")


def test_the_merge_is_float32_where_base_and_adapter_are_bf16(llama, tmp_path):
    low = AutoModelForCausalLM.from_pretrained(llama, dtype=torch.bfloat16)
    low.save_pretrained(tmp_path / "base")
    shutil.copy(llama / "tokenizer.json", tmp_path / "base")
    shutil.copy(llama / "tokenizer_config.json", tmp_path / "base")
    adapt(tmp_path / "base", tmp_path / "adapter", target_modules=["q_proj"])
    file = tmp_path / "adapter" / "adapter_model.safetensors"
    tensors = {name: x.bfloat16() for name, x in load_file(str(file)).items()}
    save_file(tensors, str(file), metadata={"format": "pt"})
    folder = resolve_model(str(tmp_path / "adapter"), cache=tmp_path / "cache")
    name = "model.layers.0.self_attn.q_proj"
    a, b = (tensors[f"base_model.model.{name}.lora_{k}.weight"].float() for k in "AB")
    wanted = dict(low.named_parameters())[f"{name}.weight"].detach().float() + 6 / 4 * (b @ a)
    found = dict(load_causal_lm(folder).named_parameters())[f"{name}.weight"].detach()
    assert found.numpy() == pytest.approx(wanted.numpy(), abs=1e-7)


def test_it_is_merged_once_and_again_after_a_change(llama, adapter, tmp_path):
    first = resolve_model(str(adapter), cache=tmp_path / "cache")
    made = (first / "model.safetensors").stat().st_mtime_ns
    assert resolve_model(str(adapter), cache=tmp_path / "cache") == first
    assert (first / "model.safetensors").stat().st_mtime_ns == made
    edit(adapter, lora_alpha=12)
    assert resolve_model(str(adapter), cache=tmp_path / "cache") != first


def test_an_adapter_that_brings_the_output_layer_unties_it(llama, tmp_path):
    tuned = adapt(
        llama, tmp_path / "adapter", target_modules=["q_proj"], modules_to_save=["lm_head"]
    )
    with torch.no_grad():
        for name, p in tuned.named_parameters():
            if "lm_head.modules_to_save" in name:
                p.add_(0.1 * torch.randn_like(p))
    tuned.save_pretrained(tmp_path / "adapter")
    folder = resolve_model(str(tmp_path / "adapter"), cache=tmp_path / "cache")
    with torch.no_grad():
        found, wanted = load_causal_lm(folder)(IDS).logits, tuned(IDS).logits
    assert found.numpy() == pytest.approx(wanted.numpy(), abs=1e-5)


def test_the_adapters_own_tokenizer_and_value_head_come_along(llama, adapter, tmp_path):
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(llama / file, adapter)
    (adapter / "chat_template.jinja").write_text("{{ messages[0]['content'] }}!")
    save_file({"linear.weight": torch.ones(1, 32)}, str(adapter / "value_head.safetensors"))
    folder = resolve_model(str(adapter), cache=tmp_path / "cache")
    assert Tokenizer(folder).has_chat_template
    assert not Tokenizer(llama).has_chat_template
    assert load_file(str(folder / "value_head.safetensors"))["linear.weight"].sum() == 32


def test_a_base_by_any_of_the_forms_is_found(tmp_path):
    cache = tmp_path / "cache"
    base = resolve_model("tiny:hidden=32,layers=1,heads=2", cache=cache)
    tuned = adapt(base, tmp_path / "adapter")
    edit(tmp_path / "adapter", base_model_name_or_path="tiny:hidden=32,layers=1,heads=2")
    folder = resolve_model(str(tmp_path / "adapter"), cache=cache)
    with torch.no_grad():
        logits = load_causal_lm(folder)(IDS).logits
        assert logits.numpy() == pytest.approx(tuned(IDS).logits.numpy(), abs=1e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"peft_type": "IA3"}, "peft_type 'IA3'"),
        ({"task_type": "SEQ_CLS"}, r"task SEQ_CLS[\s\S]*reward=classifier"),
        ({"base_model_name_or_path": None}, "names no base model"),
        ({"base_model_name_or_path": "/gone"}, "the base of the adapter .*'/gone' is not there"),
        ({"target_modules": ["q_proj"]}, "does not fit its base"),
        ({"r": 8}, "does not fit its base"),
    ],
)
def test_what_cannot_be_merged_says_why(adapter, tmp_path, changes, message):
    edit(adapter, **changes)
    with pytest.raises(ModelError, match=message):
        resolve_model(str(adapter), cache=tmp_path / "cache")
    assert not list((tmp_path / "cache").rglob("model.safetensors"))


def test_another_base_is_refused(adapter, tmp_path):
    config = adapter / "adapter_config.json"
    other = build_tiny(tmp_path / "other", TinyOptions(hidden=64, layers=1, heads=4))
    edit(adapter, base_model_name_or_path=str(other))
    with pytest.raises(ModelError, match="does not fit its base"):
        resolve_model(str(adapter), cache=tmp_path / "cache")
    deeper = build_tiny(tmp_path / "deeper", TinyOptions(hidden=32, layers=2, heads=4))
    # Ends of names, which fit the second layer as well; peft's own list names the first layer's.
    ends = {n.rpartition(".")[2] for n in json.loads(config.read_text())["target_modules"]}
    edit(adapter, base_model_name_or_path=str(deeper), target_modules=sorted(ends))
    with pytest.raises(ModelError, match="missing"):
        resolve_model(str(adapter), cache=tmp_path / "cache")


def test_an_adapter_of_a_tied_output_layer_is_refused(llama, tmp_path):
    adapt(llama, tmp_path / "adapter", target_modules=["lm_head"])
    with pytest.raises(ModelError, match="adapts lm_head, whose weight"):
        resolve_model(str(tmp_path / "adapter"), cache=tmp_path / "cache")


def test_pickled_adapters_and_broken_configurations_are_refused(adapter, tmp_path):
    (adapter / "adapter_model.safetensors").rename(adapter / "adapter_model.bin")
    with pytest.raises(ModelError, match=r"no adapter_model\.safetensors[\s\S]*never read"):
        resolve_model(str(adapter), cache=tmp_path)
    (adapter / "adapter_config.json").write_text("{")
    with pytest.raises(ModelError, match="is no JSON"):
        resolve_model(str(adapter), cache=tmp_path)


def test_an_adapter_of_an_adapter_is_refused(adapter, tmp_path):
    outer = shutil.copytree(adapter, tmp_path / "outer")
    edit(outer, base_model_name_or_path=str(adapter))
    with pytest.raises(ModelError, match="is an adapter itself"):
        resolve_model(str(outer), cache=tmp_path / "cache")


def test_loading_an_adapter_as_a_model_is_refused(llama, adapter):
    """transformers would take the base and put the adapter on it, unmerged."""
    with pytest.raises(ModelError, match="LoRA adapter, not a model"):
        load_causal_lm(adapter)
    shutil.copy(llama / "config.json", adapter)
    with pytest.raises(ModelError, match="LoRA adapter, not a model"):
        load_causal_lm(adapter)


def test_peft_reads_the_same_numbers(llama, adapter, tmp_path):
    folder = resolve_model(str(adapter), cache=tmp_path / "cache")
    theirs = PeftModel.from_pretrained(load_causal_lm(llama), adapter).merge_and_unload()
    for name, p in load_causal_lm(folder).named_parameters():
        assert np.allclose(p.detach(), theirs.get_parameter(name).detach(), atol=1e-7), name
