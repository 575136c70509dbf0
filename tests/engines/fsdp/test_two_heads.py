"""Values after the last token, and one trunk under two heads."""

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, GraniteConfig

from bestiary.batch import Ragged, RowBlock
from bestiary.engines.engine_api import ModelSpec, Ranks
from bestiary.engines.fsdp.engine import FSDPEngine
from bestiary.engines.fsdp.options import FSDPOptions
from bestiary.errors import DataError
from bestiary.models.saving import save_model
from bestiary.testing.ranks import run_ranks


def trained(kit, path, rows, **options):
    """An engine whose value head is no longer 0."""
    e = kit.engine(path, lr=1e-2, **options)
    weights = kit.weights_of(rows, "value")
    for _ in range(2):
        e.update(kit.parts_of(rows, weights))
    return e


def longer(rows, token):
    """Each response with one token more."""
    ids = rows.tokens["response_ids"]
    more = Ragged.from_rows([np.append(ids.row(i), token) for i in range(len(ids))], np.int64)
    return RowBlock({"prompt_ids": rows.tokens["prompt_ids"], "response_ids": more})


@pytest.mark.parametrize("packing", ["packed", "padded"])
@pytest.mark.parametrize("arch", ["llama", "gpt2"])
def test_the_value_after_is_that_before_a_further_token(kit, model_of, arch, packing):
    rows = kit.make_rows()
    e = trained(kit, model_of(arch), rows, head="value", packing=packing)
    micro = [range(0, 5), range(5, len(rows))]
    made = e.forward(rows, micro, ["values", "values_after"])
    lengths = rows.tokens["response_ids"].lengths
    plain = e.forward(rows, micro, ["values"])["values"]
    assert made["values"].lengths.tolist() == lengths.tolist()
    assert made["values"].values == pytest.approx(plain.values, abs=1e-6)
    for token in (0, 7):
        more = e.forward(longer(rows, token), micro, ["values"])["values"]
        last = [more.row(i)[-1] for i in range(len(rows))]
        assert made["values_after"].lengths.tolist() == [1] * len(rows)
        assert made["values_after"].values == pytest.approx(last, abs=1e-6)
    assert np.ptp(made["values_after"].values) > 0


def test_a_row_as_long_as_the_model_allows_has_a_value_after(kit, model_of):
    e = kit.engine(model_of("gpt2"), head="value")
    most = e.max_length
    block = {"prompt_ids": [[5, 6]], "response_ids": [[7] * (most - 2)]}
    rows = RowBlock({name: Ragged.from_rows(x, np.int64) for name, x in block.items()})
    assert len(e.forward(rows, [[0]], ["values_after"])["values_after"].values) == 1
    with pytest.raises(DataError, match="longer than"):
        e.forward(longer(rows, 7), [[0]], ["values_after"])


@pytest.mark.parametrize("arch", ["llama", "gpt2"])
def test_one_trunk_under_two_heads_adds_their_gradients(kit, model_of, arch):
    rows = kit.make_rows()
    both = kit.weights_of(rows, "policy", "value")

    def gradients(head, *names):
        e = kit.engine(model_of(arch), head=head, lr=0.0, clip_norm=0.0)
        weight = e.net.value_head.linear.weight if e.net.value_head is not None else None
        if weight is not None:  # a head of 0 would hide the trunk from its loss
            weight.data.fill_(0.1)
        e.update(kit.parts_of(rows, {name: both[name] for name in names}))
        return kit.gradients(e)

    policy, value = gradients("lm", "policy"), gradients("value", "value")
    found = gradients("lm+value", "policy", "value")
    zero = {name: np.zeros_like(x) for name, x in found.items()}
    wanted = {name: zero[name] + policy.get(name, 0.0) + value.get(name, 0.0) for name in found}
    kit.close(found, wanted)
    assert np.abs(value["value_head.linear.weight"]).max() > 0


def test_both_heads_speak_as_they_do_alone(kit, model_of):
    rows = kit.make_rows()
    micro = [range(len(rows))]
    one = kit.engine(model_of("llama"), head="lm+value")
    alone = kit.engine(model_of("llama"))
    made = one.forward(rows, micro, ["logprobs", "entropy", "values", "values_after"])
    for name, column in alone.forward(rows, micro, ["logprobs", "entropy"]).items():
        assert made[name].values == pytest.approx(column.values, abs=1e-5)
    assert made["values"].values.tolist() == [0.0] * len(made["values"].values)


@pytest.mark.parametrize("packing", ["packed", "padded"])
def test_two_heads_leave_an_unusual_output_layer_alone(kit, tmp_path, packing):
    """Granite divides its logits after the output layer, which only the model itself knows."""
    sizes = {"hidden_size": 32, "intermediate_size": 64, "max_position_embeddings": 96}
    sizes |= {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    torch.manual_seed(0)
    config = GraniteConfig(vocab_size=259, logits_scaling=8.0, pad_token_id=0, **sizes)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    rows = kit.make_rows()
    micro = [range(len(rows))]
    both = kit.engine(str(tmp_path), head="lm+value", packing=packing)
    one, value = (kit.engine(str(tmp_path), head=h, packing=packing) for h in ("lm", "value"))
    for e in (both, value):
        e.net.value_head.linear.weight.data.fill_(0.1)
    assert not both.packed
    made = both.forward(rows, micro, ["logprobs", "values"])
    wanted = {**one.forward(rows, micro, ["logprobs"]), **value.forward(rows, micro, ["values"])}
    for name, column in wanted.items():
        assert made[name].values == pytest.approx(column.values, abs=1e-5), name
    weights = kit.weights_of(rows, "policy", "value")
    assert both.update(kit.parts_of(rows, weights))["grad_norm"].value > 0


@pytest.mark.parametrize("arch", ["llama", "qwen2"])
def test_one_trunk_is_saved_as_a_language_model_with_a_head(kit, model_of, tmp_path, arch):
    rows = kit.make_rows()
    e = kit.engine(model_of(arch), head="lm+value", lr=1e-2)
    e.update(kit.parts_of(rows, kit.weights_of(rows, "policy", "value")))
    save_model(tmp_path, model_of(arch), e.export())
    made, again = kit.whole(e), kit.whole(kit.engine(str(tmp_path), head="lm+value"))
    assert made.keys() == again.keys()
    assert all(np.array_equal(made[n], again[n]) for n in made)
    assert {n for n in made if n.startswith("value_head.")} == {
        "value_head.linear.weight",
        "value_head.linear.bias",
    }
    assert kit.whole(kit.engine(str(tmp_path))).keys() == {
        n for n in made if not n.startswith("value_head.")
    }


def test_two_heads_on_two_ranks(kit, model_of):
    rows = kit.make_rows()
    weights = kit.weights_of(rows, "policy", "value")

    def run(rank, world, shard):
        e = kit.engine(model_of("qwen2"), rank, world, head="lm+value", lr=1e-2, shard=shard)
        for _ in range(2):
            e.update(kit.parts_of(rows, weights, rank=rank, world=world))
        return kit.gradients(e)

    (alone,) = run_ranks(1, run, "none")
    for shard in ("none", "full"):
        for found in run_ranks(2, run, shard):
            kit.close(found, alone, rel=1e-4)


def test_a_model_can_have_a_learning_rate_of_its_own(kit, model_of):
    rows = kit.make_rows()
    spec = ModelSpec(path=model_of("llama"), lr=0.25)
    e = FSDPEngine(FSDPOptions(lr=1e-3), spec, Ranks(), kit.resolve)
    stats = e.update(kit.parts_of(rows, kit.weights_of(rows, "policy")))
    assert stats["lr"].value == 0.25
