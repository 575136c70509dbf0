"""Models, data and rewards of one's own: each trains two steps."""

import json
import math
import shutil

import pytest
from run_help import SMALL, custom, records, train_here
from transformers import AutoModelForCausalLM

from bestiary.errors import BestiaryError
from bestiary.models.resolve import resolve_model

WORDS = ["algorithm=grpo", "steps=2", "eval.every=0", "eval.problems=4"]
NO_TINY = [w for w in SMALL if not w.startswith("model")]
TINY = "tiny:arch=llama,hidden=32,layers=2,heads=2"


def check(run_dir):
    """Both steps are there, finite, and the second one learned from a difference."""
    kept = [r for r in records(run_dir) if r["step"] > 0]
    assert [r["step"] for r in kept] == [1, 2]
    for r in kept:
        assert all(math.isfinite(v) for v in r.values()), r
        assert r["grad_norm"] > 0
        assert r["update/skipped"] == 0
    return kept


def model_folder(folder, shape, **tokenizer):
    """A small checkpoint of one's own, with other settings of its tokenizer."""
    shutil.copytree(resolve_model(f"tiny:{shape},hidden=32,layers=2,heads=2"), folder)
    path = folder / "tokenizer_config.json"
    config = {**json.loads(path.read_text()), **tokenizer}
    if config.get("pad_token") == "eos":
        config["pad_token"] = config["eos_token"]
    path.write_text(json.dumps(config))
    return ["model=hf", f"model.path={folder}"]


def test_a_model_by_path_with_learned_positions_and_pad_equal_to_eos(lab, tmp_path):
    model = model_folder(tmp_path / "model", "arch=gpt2,positions=64", pad_token="eos")
    train_here([*WORDS, *model, *custom("letters")], tmp_path / "run", lab, small=NO_TINY)
    lengths = [r["response_len/mean"] for r in check(tmp_path / "run")]
    assert all(1 <= length <= 4 for length in lengths)
    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "run" / "model")
    assert exported.config.model_type == "gpt2"


def test_bf16(lab, tmp_path):
    train_here([*WORDS, "model.dtype=bf16", *custom("letters")], tmp_path / "run", lab)
    check(tmp_path / "run")


def test_a_reward_in_a_file_with_arguments(lab, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "def length(samples, scale):\n    return [scale * len(s.response) for s in samples]\n"
    )
    words = ["reward=custom", f"reward.path={file}:length", "reward.kwargs={scale:0.25}"]
    train_here([*WORDS, *words], tmp_path / "run", lab)
    kept = [r for r in records(tmp_path / "run") if r["step"] > 0]
    rows = [
        json.loads(line)
        for line in (tmp_path / "run" / "samples" / "step_1.jsonl").read_text().splitlines()
    ]
    assert all(row["reward"] == 0.25 * len(row["response"]) for row in rows)
    assert all(0 < r["reward/mean"] <= 1 for r in kept)


def test_rew_04_a_reward_with_holes(lab, tmp_path):
    train_here([*WORDS, *custom("holes")], tmp_path / "run", lab)
    for r in check(tmp_path / "run"):
        assert r["valid/fraction"] == pytest.approx(10 / 16)
        assert r["reward/invalid"] == pytest.approx(6 / 16)


TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


@pytest.mark.parametrize("template", [TEMPLATE, None])
def test_chat_messages_from_a_file(lab, tmp_path, template):
    data = tmp_path / "chat.jsonl"
    rows = [
        {
            "prompt": [
                {"role": "system", "content": "Add."},
                {"role": "user", "content": f"{a} and {a + 1}?"},
            ],
            "answer": 2 * a + 1,
        }
        for a in range(40)
    ]
    data.write_text("\n".join(map(json.dumps, rows)))
    words = ["task=jsonl", f"task.path={data}", "task.eval_fraction=0.2", "task.max_tokens=5"]
    if template:
        words += model_folder(tmp_path / "model", "arch=llama", chat_template=template)
    else:
        words += ["model=hf", f"model.path={resolve_model(TINY)}", "model.chat_template=false"]
    train_here([*WORDS, *words, *custom("letters")], tmp_path / "run", lab, small=NO_TINY)
    kept = check(tmp_path / "run")
    assert all(r["response_len/max"] <= 5 for r in kept)
    line = (tmp_path / "run" / "samples" / "step_1.jsonl").read_text().splitlines()[0]
    assert " and " in json.loads(line)["prompt"]
    assert ("<assistant>" in json.loads(line)["prompt"]) == bool(template)
    assert int(json.loads(line)["answer"]) % 2 == 1


def test_messages_without_a_template_are_refused_before_training(lab, tmp_path):
    data = tmp_path / "chat.jsonl"
    row = {"prompt": [{"role": "user", "content": "1"}, {"role": "user", "content": "2"}]}
    data.write_text("\n".join(json.dumps({**row, "answer": i, "id": i}) for i in range(9)))
    words = ["task=jsonl", f"task.path={data}", "task.eval_fraction=0.5", "task.uid=id"]
    with pytest.raises(BestiaryError):
        train_here([*WORDS, *words, *custom("letters")], tmp_path / "run", lab)
    assert not (tmp_path / "run" / "checkpoints").exists()


@pytest.mark.parametrize("name", ["lab_mean_sample", "lab_mean_group", "lab_mean_row"])
def test_estimators_of_every_scope_train(lab, tmp_path, name):
    train_here([*WORDS, f"advantage={name}", *custom("letters")], tmp_path / "run", lab)
    check(tmp_path / "run")


def test_dynamic_sampling_refills_and_goes_on(lab, tmp_path):
    words = ["sampler=dynamic", "algorithm.samples=2", *custom("letters")]
    train_here([*WORDS, *words], tmp_path / "run", lab)
    kept = check(tmp_path / "run")
    assert kept[-1]["sampler/judged"] >= 8
    assert kept[-1]["groups/zero_variance"] == 0.0
