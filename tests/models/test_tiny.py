import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM

from bestiary.errors import ModelError
from bestiary.models.resolve import resolve_model
from bestiary.models.tiny import (
    ARCHS,
    SPECIALS,
    VOCAB_SIZE,
    TinyOptions,
    build_tiny,
    byte_tokenizer,
    parse_tiny,
)
from bestiary.models.tokenizer import Tokenizer

SMALL = {"hidden": 32, "layers": 2, "heads": 4, "positions": 64}


def load(folder):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("tied", [True, False])
def test_each_architecture_builds_loads_and_runs(tmp_path, arch, tied):
    model = load(build_tiny(tmp_path, TinyOptions(arch=arch, tied=tied, **SMALL)))
    logits = model(torch.tensor([[3, 4, 5]])).logits
    assert logits.shape == (1, 3, VOCAB_SIZE)
    shared = model.get_input_embeddings().weight is model.get_output_embeddings().weight
    assert shared == tied


def test_grouped_query_attention_has_fewer_key_heads(tmp_path):
    model = load(build_tiny(tmp_path, TinyOptions(kv_heads=2, **SMALL)))
    assert model.config.num_key_value_heads == 2
    assert model.model.layers[0].self_attn.k_proj.weight.shape == (16, 32)


def test_the_default_model_is_the_one_of_the_demo(tmp_path):
    model = load(build_tiny(tmp_path))
    assert model.config.hidden_size == 128
    assert model.config.num_hidden_layers == 4
    assert 0.9e6 < model.num_parameters() <= 1.2e6


def test_weights_depend_on_the_seed_only_and_leave_the_random_state_alone(tmp_path):
    torch.manual_seed(11)
    expected = torch.rand(3)
    torch.manual_seed(11)
    one = load(build_tiny(tmp_path / "one", TinyOptions(seed=1, **SMALL))).state_dict()
    assert torch.equal(torch.rand(3), expected)
    again = load(build_tiny(tmp_path / "again", TinyOptions(seed=1, **SMALL))).state_dict()
    other = load(build_tiny(tmp_path / "other", TinyOptions(seed=2, **SMALL))).state_dict()
    assert all(torch.equal(again[name], value) for name, value in one.items())
    assert not torch.equal(one["lm_head.weight"], other["lm_head.weight"])


BYTES = byte_tokenizer()


@settings(max_examples=300, deadline=None)
@given(st.text())
def test_any_text_round_trips_one_token_a_byte(text):
    if any(special in text for special in SPECIALS):
        return
    ids = BYTES.encode(text)
    assert len(ids) == len(text.encode())
    assert BYTES.decode(ids) == text


def test_every_byte_has_a_token_of_its_own():
    letters = BYTES.convert_ids_to_tokens(range(len(SPECIALS), VOCAB_SIZE))
    assert len(set(letters)) == 256
    # Every byte that occurs in UTF-8 stands at its place: id = byte + number of specials.
    for text in ["a", "\n", "\x00", "\x7f", "é", "€", "😀", "\x80"]:
        assert len(BYTES.encode(text)) == len(text.encode())
    assert set(BYTES.encode("".join(map(chr, range(128))))) == {
        len(SPECIALS) + b for b in range(128)
    }


def test_a_tokenizer_may_add_a_start_token(tmp_path):
    folder = build_tiny(tmp_path, TinyOptions(add_bos=True, **SMALL))
    assert Tokenizer(folder).encode_prompt("a")[0] == SPECIALS.index("<bos>")


def test_a_spec_is_parsed_with_types():
    options = parse_tiny("arch=qwen2, hidden=64,tied=false,seed=3")
    assert options == TinyOptions(arch="qwen2", hidden=64, tied=False, seed=3)
    assert parse_tiny("") == TinyOptions()


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("hiden=64", "did you mean 'hidden'"),
        ("hidden=x", "hidden='x' is not an int"),
        ("tied=maybe", "tied='maybe' is not a bool"),
        ("arch=bert", "choose from llama"),
        ("hidden=30,heads=4", "width of a head"),
        ("heads=4,kv_heads=3", "multiple of kv_heads=3"),
        ("arch=gpt2,kv_heads=2", "gpt2 has no kv_heads"),
        ("layers=0", "at least 1"),
    ],
)
def test_a_wrong_spec_is_an_error_that_helps(spec, message):
    with pytest.raises(ModelError, match=message):
        parse_tiny(spec)


def test_a_resolved_spec_is_cached():
    spec = "tiny:hidden=32,layers=1,heads=4"
    folder = resolve_model(spec)
    made = (folder / "model.safetensors").stat().st_mtime_ns
    assert resolve_model(spec) == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == made
    assert resolve_model(spec + ",seed=1") != folder
