import json
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bestiary.errors import ModelError
from bestiary.models.tiny import BOS, EOS, PAD, SPECIALS, TinyOptions, build_tiny
from bestiary.models.tokenizer import Decoder, Tokenizer

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'tool' %}"
    "{{ raise_exception('no tools here') }}{% endif %}"
    "[{{ m.role }}]{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
USER = ({"role": "user", "content": "hi"},)
TALK = ({"role": "system", "content": "be brief"}, *USER)


def make(folder, *, template="", add_bos=False, **config):
    build_tiny(folder, TinyOptions(hidden=32, layers=1, heads=4, add_bos=add_bos))
    file = folder / "tokenizer_config.json"
    settings_ = json.loads(file.read_text()) | config
    if template:
        settings_["chat_template"] = template
    file.write_text(json.dumps({k: v for k, v in settings_.items() if v is not None}))
    return folder


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return Tokenizer(make(tmp_path_factory.mktemp("plain")))


@pytest.fixture(scope="module")
def chat(tmp_path_factory):
    return Tokenizer(make(tmp_path_factory.mktemp("chat"), template=TEMPLATE, add_bos=True))


def test_plain_text_is_its_bytes(plain):
    assert plain.encode_prompt("1+") == [len(SPECIALS) + b for b in b"1+"]
    assert plain.encode_target("46") == [*plain.encode_prompt("46"), EOS]
    assert len(plain) == 259


def test_a_template_writes_its_own_start_token_and_no_second_one_is_added(chat):
    ids = chat.encode_prompt(TALK)
    assert ids.count(BOS) == 1
    assert chat.decode(ids) == "[system]be brief[user]hi[assistant]"


def test_plain_text_that_brings_a_start_token_keeps_one(chat):
    assert chat.encode_prompt("<bos>hi") == chat.encode_prompt("hi")
    assert chat.encode_prompt("hi")[0] == BOS


def test_a_prompt_gets_no_end_token_from_the_tokenizer(tmp_path):
    folder = make(tmp_path)
    file = folder / "tokenizer.json"
    core = json.loads(file.read_text())
    core["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [
            {"Sequence": {"id": "A", "type_id": 0}},
            {"SpecialToken": {"id": "<eos>", "type_id": 0}},
        ],
        "pair": [],
        "special_tokens": {"<eos>": {"id": "<eos>", "ids": [EOS], "tokens": ["<eos>"]}},
    }
    file.write_text(json.dumps(core))
    tokenizer = Tokenizer(folder)
    assert EOS not in tokenizer.encode_prompt("hi")
    assert tokenizer.encode_prompt("hi<eos>").count(EOS) == 1
    assert tokenizer.encode_target("hi").count(EOS) == 1


def test_auto_leaves_plain_text_alone_and_always_makes_a_message(chat):
    assert chat.render("hi") == "hi"
    assert chat.render("hi", "always") == chat.render(USER) == "<bos>[user]hi[assistant]"
    assert chat.render(TALK, "never") == "be brief\nhi"


def test_without_a_template_one_message_is_its_content_and_a_conversation_is_refused(plain):
    assert plain.render(USER) == "hi"
    with pytest.raises(ModelError, match="a conversation of 2 messages needs a chat template"):
        plain.render(TALK)
    with pytest.raises(ModelError, match="chat_template=always needs a chat template"):
        plain.render("hi", "always")
    with pytest.raises(ModelError, match="choose auto, always or never"):
        plain.render("hi", "sometimes")


def test_a_template_that_refuses_names_the_roles(chat):
    with pytest.raises(ModelError, match=r"refuses roles \['tool'\]: no tools here"):
        chat.encode_prompt(({"role": "tool", "content": "x"},))


def test_several_end_tokens_come_from_the_generation_config(tmp_path):
    folder = make(tmp_path)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, EOS, 9]}))
    assert Tokenizer(folder).eos_ids == (EOS, 7, 9)


def test_padding_may_equal_the_end_token(tmp_path):
    assert Tokenizer(make(tmp_path, pad_token=None)).pad_id == EOS


def test_a_tokenizer_without_end_token_is_refused(tmp_path):
    with pytest.raises(ModelError, match="has no end token"):
        Tokenizer(make(tmp_path, eos_token=None))


def test_a_broken_tokenizer_is_a_model_error(tmp_path):
    folder = make(tmp_path)
    (folder / "tokenizer_config.json").write_text("{")
    with pytest.raises(ModelError, match="is no JSON"):
        Tokenizer(folder)


def test_the_light_decoder_agrees_with_the_tokenizer(plain):
    decoder = Decoder(plain.folder)
    for text in ["46", "é 😀\n", "  two  spaces . and , commas", ""]:
        ids = [BOS, *plain.encode_prompt(text), EOS, PAD]
        assert decoder.decode(ids) == plain.decode(ids) == text


@settings(max_examples=200, deadline=None)
@given(ids=st.lists(st.integers(0, 258), max_size=30))
def test_any_ids_decode_the_same_both_ways(plain, ids):
    assert Decoder(plain.folder).decode(ids) == plain.decode(ids)


def test_data07_half_a_character_is_a_replacement_in_text_only(plain):
    """DATA-07: ids that are no text decode to U+FFFD; encoding that again would be other ids."""
    half = [len(SPECIALS) + 0xC3]
    assert plain.decode(half) == "\ufffd"
    assert plain.encode_prompt(plain.decode(half)) == [len(SPECIALS) + b for b in b"\xef\xbf\xbd"]


def test_tiny_tokenizer_and_decoder_need_no_torch(plain):
    code = (
        "import sys; from pathlib import Path\n"
        "from bestiary.models.tokenizer import Decoder, Tokenizer\n"
        f"folder = Path({str(plain.folder)!r})\n"
        "assert Decoder(folder).decode([52]) == '1' and 'transformers' not in sys.modules\n"
        "assert Tokenizer(folder).decode([52]) == '1' and 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
