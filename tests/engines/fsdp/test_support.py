"""The packed forward pass is used where it is exact, and nowhere else."""

import logging

import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    GraniteConfig,
    LlamaConfig,
    MistralConfig,
    Qwen2Config,
)

from bestiary.engines.fsdp.support import packing_obstacle
from bestiary.errors import ModelError

SMALL = {
    "vocab_size": 259,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 96,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
DYNAMIC = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (LlamaConfig(**SMALL), ""),
        (MistralConfig(**SMALL, sliding_window=None), ""),
        (MistralConfig(**SMALL, sliding_window=8), "sliding"),
        (Qwen2Config(**SMALL), ""),
        (Qwen2Config(**SMALL, use_sliding_window=True, max_window_layers=1), "sliding"),
        (Gemma2Config(**SMALL, head_dim=8), "sliding"),
        (LlamaConfig(**SMALL, rope_parameters=DYNAMIC), "longest row"),
    ],
)
def test_obstacles_are_read_from_the_configuration(config, reason):
    found = packing_obstacle(AutoModelForCausalLM.from_config(config))
    assert reason in found
    assert bool(reason) == bool(found)


def saved(tmp_path, config):
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    return str(tmp_path)


def test_an_architecture_with_another_head_is_found_by_trying(kit, tmp_path, caplog):
    """Granite divides its logits after the output layer, which the packed head does not know."""
    path = saved(tmp_path, GraniteConfig(**SMALL, logits_scaling=8.0))
    with caplog.at_level(logging.WARNING):
        e = kit.engine(path)
    assert not e.packed
    assert "GraniteForCausalLM runs padded instead of packed" in caplog.text
    rows = kit.make_rows()
    stats = e.update(kit.parts_of(rows, kit.weights_of(rows, "policy")))
    assert stats["grad_norm"].value > 0


def test_a_sliding_window_falls_back_to_padded_and_is_honoured(kit, tmp_path):
    e = kit.engine(saved(tmp_path, MistralConfig(**SMALL, sliding_window=4)), trainable=False)
    assert not e.packed
    rows = kit.make_rows()
    found = e.forward(rows, [range(len(rows))], ["logprobs"])["logprobs"]
    ids = np.concatenate([rows.tokens["prompt_ids"].row(0), rows.tokens["response_ids"].row(0)])
    lm = AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager")
    with torch.no_grad():
        logits = lm(input_ids=torch.from_numpy(ids)[None], use_cache=False).logits[0]
    start = len(rows.tokens["prompt_ids"].row(0))
    wanted = logits.log_softmax(-1)[start - 1 : -1].gather(1, torch.from_numpy(ids[start:, None]))
    assert found.row(0) == pytest.approx(wanted[:, 0].numpy(), abs=2e-5)


def test_mistral_runs_packed(kit, tmp_path):
    path = saved(tmp_path, MistralConfig(**SMALL, sliding_window=None))
    rows = kit.make_rows()
    packed, padded = kit.engine(path), kit.engine(path, packing="padded")
    assert packed.packed
    for e in (packed, padded):
        e.update(kit.parts_of(rows, kit.weights_of(rows, "policy")))
    kit.close(kit.gradients(packed), kit.gradients(padded))


def test_a_folder_that_is_no_model_is_refused(kit, tmp_path):
    with pytest.raises(ModelError, match=r"no config\.json"):
        kit.engine(str(tmp_path))
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(ModelError, match="cannot be loaded"):
        kit.engine(str(tmp_path))
