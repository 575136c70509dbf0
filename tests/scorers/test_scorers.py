"""Rules, lexical scorers, and models by path."""

import numpy as np
import pytest
import torch

from bestiary.batch import Ragged, RowBlock
from bestiary.engines.engine_api import ModelSpec, Ranks
from bestiary.engines.fsdp.engine import FSDPEngine
from bestiary.engines.fsdp.options import FSDPOptions
from bestiary.errors import ModelError
from bestiary.models.tiny import TinyOptions, build_tiny
from bestiary.models.tokenizer import Tokenizer
from bestiary.plugins.manager import load_plugins
from bestiary.protocols import Sample

REGISTRY = load_plugins().registry
PAIRS = [("12:", "aab"), ("7:", "b"), ("123456:", "abababab"), ("1:", "ünï")]


def build(name, **options):
    component = REGISTRY.get("reward", name)
    return component.build(component.options_class()(**options))


def sample(response="", prompt="", length=None):
    length = len(response) if length is None else length
    return Sample("u", prompt, response, "", length, False)


def test_length():
    samples = [sample(length=n) for n in (0, 3, 8, 50)]
    assert build("length", target=3, scale=0.5, cap=4.0)(samples) == [0.0, 0.0, 2.5, 4.0]
    assert build("length", scale=-1.0, cap=10.0)(samples) == [0.0, -3.0, -8.0, -10.0]


def test_pattern():
    samples = [sample("a1b22"), sample("none"), sample("")]
    assert build("pattern", pattern=r"\d+", scale=2.0, most=5)(samples) == [4.0, 0.0, 0.0]
    assert build("pattern", pattern=r"\d+")(samples) == [1.0, 0.0, 0.0]
    with pytest.raises(ValueError, match="regular expression"):
        build("pattern", pattern="(")


def test_overlong_is_the_ramp_of_dapo():
    samples = [sample(length=n) for n in (0, 12, 16, 20, 99)]
    assert build("overlong", limit=20, buffer=8)(samples) == [0.0, 0.0, -0.5, -1.0, -1.0]


@pytest.mark.parametrize(
    ("name", "options"), [("pattern", {}), ("overlong", {}), ("classifier", {})]
)
def test_what_must_be_given_is_asked_for(name, options):
    with pytest.raises(Exception, match=r"reward\.(pattern|limit|path)"):
        build(name, **options)


def test_sentiment_and_toxicity_order_texts():
    good, bad = sample("What a wonderful, lovely day!"), sample("You stupid idiot, I hate you.")
    pleasant, angry = build("sentiment")([good, bad])
    assert -1.0 <= angry < 0.0 < pleasant <= 1.0
    mild, rude = build("toxicity")([good, bad])
    assert 0.0 <= mild < 0.5 < rude <= 1.0
    assert build("toxicity")([]) == []


# --------------------------------------------------------------------------- models


@pytest.fixture(scope="module")
def value_folder(tmp_path_factory):
    """A tiny model with a value head that is not 0."""
    from safetensors.torch import save_file

    folder = tmp_path_factory.mktemp("scorer") / "model"
    build_tiny(folder, TinyOptions(hidden=32, layers=2, heads=2))
    torch.manual_seed(0)
    head = {"linear.weight": torch.randn(1, 32), "linear.bias": torch.tensor([0.5])}
    save_file(head, str(folder / "value_head.safetensors"))
    return folder


def test_a_trained_score_is_the_engines_value_before_the_end_token(value_folder):
    tokenizer = Tokenizer(value_folder)
    rows = RowBlock(
        {
            "prompt_ids": Ragged.from_rows(
                [tokenizer.encode_prompt(p, "never") for p, _ in PAIRS], np.int64
            ),
            "response_ids": Ragged.from_rows(
                [tokenizer.encode_target(r) for _, r in PAIRS], np.int64
            ),
        }
    )
    spec = ModelSpec(path=str(value_folder), head="value")
    values = FSDPEngine(FSDPOptions(), spec, Ranks()).forward(rows, [range(4)], ["values"])
    wanted = [values["values"].row(i)[-1] for i in range(4)]
    samples = [sample(r, p) for p, r in PAIRS]
    scorer = build("classifier", path=str(value_folder), batch=3)
    assert scorer(samples) == pytest.approx(wanted, abs=1e-5)
    scaled = build("classifier", path=str(value_folder), mean=1.0, std=2.0)(samples)
    assert scaled == pytest.approx([(w - 1.0) / 2.0 for w in wanted], abs=1e-5)
    assert scorer([]) == []


@pytest.fixture(scope="module")
def classifier_folder(tmp_path_factory):
    from transformers import LlamaConfig, LlamaForSequenceClassification

    folder = tmp_path_factory.mktemp("classifier") / "model"
    build_tiny(folder, TinyOptions(hidden=32, layers=2, heads=2))
    config = LlamaConfig.from_pretrained(folder, num_labels=3)
    config.architectures = ["LlamaForSequenceClassification"]
    torch.manual_seed(1)
    model = LlamaForSequenceClassification(config)
    model.config.pad_token_id = Tokenizer(folder).pad_id if hasattr(Tokenizer, "pad_id") else 0
    model.save_pretrained(folder)
    return folder


def test_any_sequence_classifier_scores(classifier_folder):
    samples = [sample(r, p) for p, r in PAIRS]
    path = str(classifier_folder)
    logits = [build("classifier", path=path, label=k)(samples) for k in range(3)]
    alone = build("classifier", path=path, label=1, batch=1)(samples)
    assert alone == pytest.approx(logits[1], abs=1e-5)
    assert build("classifier", path=path)(samples) == logits[2]
    chances = build("classifier", path=path, label=1, output="softmax")(samples)
    wanted = torch.softmax(torch.tensor(logits), 0)[1].tolist()
    assert chances == pytest.approx(wanted, abs=1e-5)
    squashed = build("classifier", path=path, label=1, output="sigmoid")(samples)
    assert squashed == pytest.approx(torch.sigmoid(torch.tensor(logits[1])).tolist(), abs=1e-5)


def test_an_adapter_is_merged_into_its_base(classifier_folder, tmp_path):
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    base = AutoModelForSequenceClassification.from_pretrained(classifier_folder)
    torch.manual_seed(2)
    tuned = get_peft_model(base, LoraConfig(r=4, init_lora_weights=False, task_type="SEQ_CLS"))
    tuned.peft_config["default"].base_model_name_or_path = str(classifier_folder)
    tuned.save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(classifier_folder).save_pretrained(tmp_path)
    samples = [sample(r, p) for p, r in PAIRS]
    plain = build("classifier", path=str(classifier_folder))(samples)
    found = build("classifier", path=str(tmp_path))(samples)
    assert not np.allclose(found, plain)


def test_a_missing_model_is_one_clear_error(tmp_path):
    with pytest.raises(ModelError, match="cannot be loaded"):
        build("classifier", path=str(tmp_path / "nothing"))


def test_a_template_names_prompt_and_response_only():
    with pytest.raises(ValueError, match="template"):
        build("classifier", path="x", template="{question}")
