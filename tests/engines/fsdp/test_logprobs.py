"""What the forward pass says of a row does not depend on its company."""

import numpy as np
import pytest
import torch

from bestiary.batch import Ragged, RowBlock
from bestiary.errors import DataError, EngineError
from bestiary.ops.policy import token_logprobs


@pytest.mark.parametrize("packing", ["packed", "padded"])
@pytest.mark.parametrize("arch", ["llama", "gpt2"])
def test_math_20_a_row_alone_equals_the_row_in_company(kit, model_of, arch, packing):
    rows = kit.make_rows()
    e = kit.engine(model_of(arch), packing=packing, trainable=False)
    assert e.packed == (packing == "packed")
    together = e.forward(rows, [range(len(rows))], ["logprobs", "entropy"])
    alone = e.forward(rows, [[i] for i in range(len(rows))], ["logprobs", "entropy"])
    for name in ("logprobs", "entropy"):
        assert together[name].lengths.tolist() == rows.tokens["response_ids"].lengths.tolist()
        assert together[name].values == pytest.approx(alone[name].values, abs=2e-5)


def test_math_15_each_token_uses_the_logits_before_it(kit, model_of):
    rows = kit.make_rows()
    e = kit.engine(model_of("llama"), trainable=False)
    found = e.forward(rows, [range(len(rows))], ["logprobs"])["logprobs"]
    for i in (0, 4, 6):
        prompt = rows.tokens["prompt_ids"].row(i)
        ids = torch.from_numpy(np.concatenate([prompt, rows.tokens["response_ids"].row(i)]))
        with torch.no_grad():
            logits = e.net.lm(input_ids=ids[None], use_cache=False).logits[0]
        wanted = token_logprobs(logits[:-1], ids[1:])[len(prompt) - 1 :]
        assert found.row(i) == pytest.approx(wanted.numpy(), abs=2e-5)


@pytest.mark.parametrize("packing", ["packed", "padded"])
def test_math_13_temperature_divides_the_logits(kit, model_of, packing):
    rows = kit.make_rows()
    e = kit.engine(model_of("llama"), packing=packing, trainable=False)
    found = e.forward(rows, [range(len(rows))], ["logprobs"], temperature=0.6)["logprobs"]
    prompt, response = (rows.tokens[n].row(0) for n in ("prompt_ids", "response_ids"))
    ids = torch.from_numpy(np.concatenate([prompt, response]))
    with torch.no_grad():
        logits = e.net.lm(input_ids=ids[None], use_cache=False).logits[0]
    wanted = (
        (logits / 0.6).log_softmax(-1)[len(prompt) - 1 : -1].gather(1, ids[len(prompt) :, None])
    )
    assert found.row(0) == pytest.approx(wanted[:, 0].numpy(), abs=2e-5)


def test_the_ratio_is_exactly_one_in_the_update_of_its_own_packing(kit, model_of):
    rows = kit.make_rows()
    seen = []

    class Spy:
        options = kit.LOSSES["policy"].options

        def __call__(self, now, x):
            seen.append(((now.logprobs - x["old_logprobs"]).abs() * x.mask).max().item())
            return -now.logprobs, {}

    e = kit.engine(model_of("llama"))
    e.resolve_loss = lambda ref: Spy()
    (part,) = kit.parts_of(rows, kit.weights_of(rows, "policy"))
    old = e.forward(part.rows, part.micro, ["logprobs"])["logprobs"]
    tokens = {**part.rows.tokens, "old_logprobs": old}
    part = type(part)(rows=RowBlock(tokens, part.rows.table), micro=part.micro, terms=part.terms)
    e.update([part])
    assert seen
    assert max(seen) == 0.0


def test_long_prompts_and_many_lengths(kit, model_of):
    """Blocks of one row, prompts of very different lengths, a budget that holds everything."""
    rng = np.random.default_rng(3)
    prompts = [rng.integers(3, 259, k) for k in (1, 80, 2, 33, 80)]
    responses = [rng.integers(3, 259, k) for k in (70, 3, 15, 15, 16)]
    rows = RowBlock(
        {
            "prompt_ids": Ragged.from_rows(prompts * 2, np.int64),
            "response_ids": Ragged.from_rows(responses + responses[::-1], np.int64),
        }
    )
    rows = rows.take([0, 1, 2, 3, 4, 6, 7, 8])
    packed = kit.engine(model_of("qwen3"), trainable=False)
    padded = kit.engine(model_of("qwen3"), packing="padded", trainable=False)
    a, b = (e.forward(rows, [range(8)], ["logprobs"])["logprobs"] for e in (packed, padded))
    assert a.values == pytest.approx(b.values, abs=2e-5)


def test_rows_that_no_model_can_score_are_refused(kit, model_of):
    e = kit.engine(model_of("gpt2"), trainable=False)

    def rows(prompt, response):
        ids = {"prompt_ids": [prompt], "response_ids": [response]}
        return RowBlock({k: Ragged.from_rows(v, np.int64) for k, v in ids.items()})

    with pytest.raises(DataError, match="row 0 has an empty prompt"):
        e.forward(rows([], [5]), [[0]], ["logprobs"])
    with pytest.raises(DataError, match="97 tokens is longer than the 96 positions"):
        e.forward(rows([5] * 90, [5] * 7), [[0]], ["logprobs"])
    with pytest.raises(EngineError, match="'values'"):
        e.forward(rows([5], [5]), [[0]], ["values"])
    with pytest.raises(EngineError, match="1 rows are in no micro-batch"):
        e.forward(rows([5], [5]), [], ["logprobs"])
