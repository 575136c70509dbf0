"""Options of the training engine are checked without torch."""

import subprocess
import sys

import pytest

from bestiary.config.compose import compose_run
from bestiary.engines.fsdp.options import FSDPOptions, LoRAOptions
from bestiary.errors import ConfigError


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"lr": -1.0}, "lr=-1.0"),
        ({"lr": float("nan")}, "lr=nan"),
        ({"betas": (0.9, 1.0)}, "betas"),
        ({"eps": 0.0}, "eps"),
        ({"shard": "half"}, "'half'"),
        ({"packing": "loose"}, "'loose'"),
        ({"lr_schedule": "step"}, "constant, linear, cosine"),
        ({"lr_schedule": "cosine"}, "total_steps=0"),
        ({"lr_schedule": "linear", "total_steps": 3, "warmup_steps": 3}, "above warmup_steps=3"),
        ({"tokens_per_micro": 0}, "tokens_per_micro=0"),
        ({"max_skipped": -1}, "max_skipped=-1"),
    ],
)
def test_what_is_out_of_range_is_named(given, message):
    with pytest.raises(ValueError, match=message):
        FSDPOptions(**given)


def test_schedules():
    constant = FSDPOptions(lr=1.0, warmup_steps=4)
    assert [constant.lr_at(k) for k in (1, 2, 4, 5, 99)] == [0.25, 0.5, 1.0, 1.0, 1.0]
    linear = FSDPOptions(lr=1.0, warmup_steps=2, lr_schedule="linear", total_steps=6)
    assert [linear.lr_at(k) for k in (1, 2, 3, 4, 6, 7, 9)] == [0.5, 1.0, 1.0, 0.75, 0.25, 0, 0]
    cosine = FSDPOptions(lr=1.0, lr_schedule="cosine", total_steps=4)
    assert [cosine.lr_at(k) for k in (1, 3, 5)] == pytest.approx([1.0, 0.5, 0.0])


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ([], None),
        (["train_engine.lora.rank=8"], LoRAOptions(rank=8)),
        (["train_engine.lora={}"], LoRAOptions()),
        (["train_engine.lora={rank:8,alpha:8}"], LoRAOptions(rank=8, alpha=8)),
        (["train_engine.lora.targets=[q_proj,v_proj]"], LoRAOptions(targets=("q_proj", "v_proj"))),
        (["train_engine.lora.rank=8", "train_engine.lora.seed=3"], LoRAOptions(rank=8, seed=3)),
        (["train_engine.lora=null"], None),
    ],
)
def test_lora_is_switched_on_by_any_of_its_options(words, wanted):
    plan = compose_run(["algorithm=grpo", "task=addition", "model=tiny", *words])
    assert plan.options["train_engine"].lora == wanted


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("train_engine.lora.rnk=8", r"no option 'rnk'; did you mean 'train_engine\.lora\.rank'"),
        ("train_engine.lora.rank=0", "rank must be at least 1"),
        ("train_engine.lora.rank=many", "wanted a whole number"),
        ("train_engine.lora=16", "a section with the keys rank"),
    ],
)
def test_a_mistake_in_lora_is_named(word, message):
    with pytest.raises(ConfigError, match=message):
        compose_run(["algorithm=grpo", "task=addition", "model=tiny", word])


def test_options_import_no_torch():
    code = "import sys, bestiary.engines.fsdp.options; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
