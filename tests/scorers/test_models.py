"""Models by path: what is read, how it is tokenised and padded, and what is refused."""

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from bestiary.errors import ModelError
from bestiary.models.tiny import TinyOptions, build_tiny
from bestiary.models.tokenizer import Tokenizer
from bestiary.plugins.manager import load_plugins
from bestiary.protocols import Sample
from bestiary_scorers.classifier import batches

COMPONENT = load_plugins().registry.get("reward", "classifier")
SMALL = {"hidden": 32, "layers": 2, "heads": 2}
TEXTS = [("12:", "aab"), ("7:", "b"), ("123456:", "abababab"), ("1:", "ünï"), ("9:", "")]
CHAT = (
    "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{{ eos_token }}"
    "{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
)


def build(folder, **options):
    return COMPONENT.build(COMPONENT.options_class()(path=str(folder), **options))


def samples(extra=None):
    return [Sample("u", p, r, "", len(r), False, extra or {}) for p, r in TEXTS]


def ids_of(folder, text, *, special=False):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)(text, add_special_tokens=special)["input_ids"]


def edit(folder, name, **values):
    file = folder / name
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def decoder(folder, labels=1, *, seed=1, **tiny):
    """A llama that classifies."""
    from transformers import LlamaConfig, LlamaForSequenceClassification

    build_tiny(folder, TinyOptions(**SMALL, **tiny))
    config = LlamaConfig.from_pretrained(folder, num_labels=labels)
    torch.manual_seed(seed)
    LlamaForSequenceClassification(config).save_pretrained(folder)
    return folder


def own(folder, *, seed=0, **tiny):
    """A language model with a value head, as bestiary writes it."""
    build_tiny(folder, TinyOptions(**SMALL, **tiny))
    torch.manual_seed(seed)
    head = {"linear.weight": torch.randn(1, 32), "linear.bias": torch.tensor([0.5])}
    save_file(head, str(folder / "value_head.safetensors"))
    return folder


def classify(folder, ids):
    """The logits of one text, alone and without padding."""
    from transformers import AutoModelForSequenceClassification

    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    model.config.pad_token_id = None  # the last token, whatever it is
    with torch.no_grad():
        return model(input_ids=torch.tensor([ids])).logits[0].tolist()


# --------------------------------------------------------------------------- padding and limits


def test_math06_a_text_that_ends_with_the_pad_token_is_scored_at_its_end(tmp_path):
    """The pad token is the end token, and a chat template ends each text with it."""
    folder = decoder(tmp_path / "m")
    edit(folder, "tokenizer_config.json", pad_token="<eos>", chat_template=CHAT)
    (folder / "chat_template.jinja").write_text(CHAT)
    texts = [f"<bos>[user]{p}<eos>[assistant]{r}<eos>" for p, r in TEXTS]
    wanted = [classify(folder, ids_of(folder, text))[0] for text in texts]
    assert build(folder, chat=True)(samples()) == pytest.approx(wanted, abs=1e-5)
    assert build(folder, chat=True, batch=1)(samples()) == pytest.approx(wanted, abs=1e-5)


def test_an_encoder_scores_as_it_does_alone(tmp_path):
    from transformers import BertConfig, BertForSequenceClassification

    folder = tmp_path / "m"
    build_tiny(folder, TinyOptions(**SMALL))
    config = BertConfig(
        vocab_size=259, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, num_labels=2,
        intermediate_size=64, max_position_embeddings=64, pad_token_id=0,
    )  # fmt: skip
    torch.manual_seed(0)
    BertForSequenceClassification(config).save_pretrained(folder)
    wanted = [classify(folder, ids_of(folder, p + r))[0] for p, r in TEXTS]
    assert build(folder, label=0)(samples()) == pytest.approx(wanted, abs=1e-5)
    long = Sample("u", "x" * 500, "tail", "", 4, False)
    cut = classify(folder, ids_of(folder, ("x" * 500 + "tail")[-64:]))[0]
    assert build(folder, label=0)([long]) == pytest.approx([cut], abs=1e-5)


def test_a_long_text_loses_its_beginning(tmp_path):
    for folder in (own(tmp_path / "own"), decoder(tmp_path / "llama")):
        long = Sample("u", "x" * 40, "tail", "", 4, False)
        short = Sample("u", "xxxx", "tail", "", 4, False)
        scorer = build(folder, max_tokens=8)
        assert scorer([long]) == pytest.approx(scorer([short]), abs=1e-6)


def test_a_text_without_tokens_is_invalid(tmp_path):
    empty = Sample("u", "", "", "", 0, False)
    full = Sample("u", "a", "b", "", 1, False)
    for folder in (own(tmp_path / "own"), decoder(tmp_path / "llama")):
        scores = build(folder)([empty, full])
        assert scores[0] is None
        assert isinstance(scores[1], float)


@given(
    lengths=st.lists(st.integers(0, 30), max_size=40),
    rows=st.integers(1, 9),
    tokens=st.integers(1, 80),
)
def test_batches_hold_each_text_once_within_both_budgets(lengths, rows, tokens):
    made = list(batches(lengths, rows, tokens))
    assert sorted(i for batch in made for i in batch) == [i for i, n in enumerate(lengths) if n]
    for batch in made:
        width = max(lengths[i] for i in batch)
        assert len(batch) <= rows
        assert len(batch) == 1 or len(batch) * width <= tokens


# --------------------------------------------------------------------------- text


def test_a_chat_template_and_a_tokenizer_write_one_start_token(tmp_path):
    folder = decoder(tmp_path / "m", add_bos=True)
    edit(folder, "tokenizer_config.json", chat_template=CHAT)
    (folder / "chat_template.jinja").write_text(CHAT)
    messages = [{"role": "system", "content": "S"}, {"role": "user", "content": "Q"}]
    text = "<bos>[system]S<eos>[user]Q<eos>[assistant]A<eos>"
    sample = Sample("u", "the policy's own rendering", "A", "", 1, False, {"messages": messages})
    wanted = classify(folder, ids_of(folder, text))
    assert build(folder, chat=True)([sample]) == pytest.approx(wanted, abs=1e-5)
    plain = Sample("u", "<bos>Q", "A", "", 1, False)
    wanted = classify(folder, ids_of(folder, "QA", special=True))
    assert build(folder)([plain]) == pytest.approx(wanted, abs=1e-5)


def test_a_template_is_the_text_that_is_read(tmp_path):
    folder = decoder(tmp_path / "m")
    wanted = [classify(folder, ids_of(folder, f"Q {p} A {r}."))[0] for p, r in TEXTS]
    found = build(folder, template="Q {prompt} A {response}.")(samples())
    assert found == pytest.approx(wanted, abs=1e-5)


@pytest.mark.parametrize("add_bos", [False, True])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_a_value_head_reads_the_tokens_of_its_training(tmp_path, add_bos, dtype):
    from transformers import AutoModel

    folder = own(tmp_path / "m", add_bos=add_bos)
    kind = torch.bfloat16 if dtype == "bf16" else torch.float32
    model, tokenizer = AutoModel.from_pretrained(folder, dtype=kind).eval(), Tokenizer(folder)
    torch.manual_seed(0)
    weight = torch.randn(1, 32)[0]
    wanted = []
    for p, r in TEXTS:
        ids = [*tokenizer.encode_prompt(p, "never"), *tokenizer.encode_target(r)[:-1]]
        assert (ids[0] == 1) == add_bos
        with torch.no_grad():
            state = model(input_ids=torch.tensor([ids])).last_hidden_state[0, -1].float()
        wanted.append(float(state @ weight + 0.5))
    found = build(folder, dtype=dtype)(samples())
    assert found == pytest.approx(wanted, abs=1e-5 if dtype == "fp32" else 0.1)
    squashed = build(folder, dtype=dtype, output="sigmoid")(samples())
    assert squashed == pytest.approx(torch.sigmoid(torch.tensor(found)).tolist(), abs=1e-5)


# --------------------------------------------------------------------------- adapters


def adapter(base, folder, task, auto, *, labels=None):
    """A LoRA adapter of a model; returns its merged weights' module."""
    import transformers
    from peft import LoraConfig, get_peft_model

    extra = {"num_labels": labels} if labels else {}
    model = getattr(transformers, auto).from_pretrained(base, **extra)
    torch.manual_seed(3)
    tuned = get_peft_model(model, LoraConfig(r=4, init_lora_weights=False, task_type=task))
    tuned.peft_config["default"].base_model_name_or_path = str(base)
    tuned.save_pretrained(folder)
    return tuned.merge_and_unload().eval()


def test_an_adapter_may_bring_the_head_of_a_plain_language_model(tmp_path):
    base = tmp_path / "base"
    build_tiny(base, TinyOptions(**SMALL))
    model = adapter(base, tmp_path / "a", "SEQ_CLS", "AutoModelForSequenceClassification", labels=3)
    model.config.pad_token_id = None
    found = build(tmp_path / "a", label=1)(samples())  # the tokenizer is the base's
    with torch.no_grad():
        wanted = [
            float(model(input_ids=torch.tensor([ids_of(base, p + r)])).logits[0, 1])
            for p, r in TEXTS
        ]
    assert found == pytest.approx(wanted, abs=1e-4)


def test_a_value_model_without_an_output_layer_scores(tmp_path):
    """As the training engine exports it."""
    whole, bare = own(tmp_path / "whole"), own(tmp_path / "bare")
    tensors = load_file(str(bare / "model.safetensors"))
    del tensors["lm_head.weight"]
    save_file(tensors, str(bare / "model.safetensors"), metadata={"format": "pt"})
    assert build(bare)(samples()) == build(whole)(samples())
    del tensors["model.norm.weight"]
    save_file(tensors, str(bare / "model.safetensors"), metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"lack model\.norm\.weight"):
        build(bare)


def test_an_adapter_with_a_value_head_beside_it(tmp_path):
    base = tmp_path / "base"
    build_tiny(base, TinyOptions(**SMALL))
    model = adapter(base, tmp_path / "a", "CAUSAL_LM", "AutoModelForCausalLM")
    head = {"linear.weight": torch.ones(1, 32), "linear.bias": torch.tensor([0.0])}
    save_file(head, str(tmp_path / "a" / "value_head.safetensors"))
    wanted = []
    for p, r in TEXTS:
        with torch.no_grad():
            hidden = model.model(input_ids=torch.tensor([ids_of(base, p + r)])).last_hidden_state
        wanted.append(float(hidden[0, -1].sum()))
    assert build(tmp_path / "a")(samples()) == pytest.approx(wanted, abs=1e-4)


def test_an_adapter_that_does_not_fit_or_is_a_pickle_is_refused(tmp_path):
    base = tmp_path / "base"
    build_tiny(base, TinyOptions(**SMALL))
    adapter(base, tmp_path / "a", "CAUSAL_LM", "AutoModelForCausalLM")
    save_file({"linear.weight": torch.ones(1, 32), "linear.bias": torch.zeros(1)},
              str(tmp_path / "a" / "value_head.safetensors"))  # fmt: skip
    strange = {"base_model.model.elsewhere.lora_A.weight": torch.ones(4, 32)}
    save_file(strange, str(tmp_path / "a" / "adapter_model.safetensors"))
    with pytest.raises(ModelError, match="does not fit its base"):
        build(tmp_path / "a")
    (tmp_path / "a" / "adapter_model.safetensors").rename(tmp_path / "a" / "adapter_model.bin")
    with pytest.raises(ModelError, match=r"no adapter_model\.safetensors"):
        build(tmp_path / "a")


def test_an_adapter_without_peft_names_the_package(tmp_path, monkeypatch):
    base = decoder(tmp_path / "base")
    adapter(base, tmp_path / "a", "SEQ_CLS", "AutoModelForSequenceClassification")
    monkeypatch.setitem(__import__("sys").modules, "peft", None)
    with pytest.raises(ModelError, match=r"bestiary-scorers\[lora\]"):
        build(tmp_path / "a")


# --------------------------------------------------------------------------- refusals


def test_a_language_model_without_a_head_is_refused(tmp_path):
    """transformers would score with a random head and only warn."""
    build_tiny(tmp_path / "m", TinyOptions(**SMALL))
    with pytest.raises(ModelError, match=r"lack score\.weight"):
        build(tmp_path / "m")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"label": 3}, "label=3: the model has 3 labels"),
        ({"label": -4}, "label=-4"),
        ({"chat": True}, "no chat template"),
    ],
)
def test_options_that_the_model_cannot_serve_are_refused(tmp_path, options, message):
    with pytest.raises(ModelError, match=message):
        build(decoder(tmp_path / "m", labels=3), **options)


def test_a_softmax_over_one_number_is_refused(tmp_path):
    for folder in (own(tmp_path / "own"), decoder(tmp_path / "llama")):
        with pytest.raises(ModelError, match="always 1"):
            build(folder, output="softmax")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"template": "{prompt}"}, "response"),
        ({"template": "{response}{response}"}, "once"),
        ({"batch": 0}, "batch=0"),
        ({"tokens": 0}, "tokens=0"),
        ({"std": 0.0}, "std=0"),
    ],
)
def test_options_without_meaning_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        build("x", **options)


def test_pickled_weights_are_not_read(tmp_path):
    folder = decoder(tmp_path / "m")
    (folder / "model.safetensors").unlink()
    torch.save({}, folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match="cannot be loaded"):
        build(folder)
