import numpy as np
import pytest
import torch

from bestiary.engines.local.decode_hf import HFDecoder
from bestiary.engines.local.decoder import FastDecoder
from bestiary.protocols import Sampling

FAST = [
    "llama",
    "llama_tied",
    "llama_biased",
    "llama_head_dim",
    "llama3_rope",
    "linear_rope",
    "mistral",
    "qwen2",
    "qwen3",
    "gpt2",
]
GENERIC = ["gpt_neox", "opt", "mistral_windowed", "dynamic_rope"]


def hf_greedy(model, prompt, tokens):
    ids = torch.from_numpy(prompt)[None]
    out = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, do_sample=False
    )
    return out[0, len(prompt) :].numpy()


@pytest.mark.parametrize("kind", FAST + GENERIC)
def test_greedy_tokens_and_logprobs_equal_transformers(tools, start, kind):
    model = tools.build(kind)
    engine = start(model, slots=5)
    assert type(engine._decoder) is (FastDecoder if kind in FAST else HFDecoder)
    prompts = tools.prompts_of((3, 7, 1, 12, 5, 5, 9))
    kinds = (Sampling(greedy=True, max_tokens=12), Sampling(n=3, max_tokens=20, temperature=0.7))
    out = engine.generate([tools.request(p, *kinds, uid=str(i)) for i, p in enumerate(prompts)])
    for prompt, completions in zip(prompts, out, strict=True):
        greedy, *drawn = completions
        assert np.array_equal(greedy.ids, hf_greedy(model, prompt, 12))
        assert len(drawn) == 3
        for c, temperature in [(greedy, 1.0), *((c, 0.7) for c in drawn)]:
            want = tools.reference_logprobs(model, prompt, c.ids, temperature)
            np.testing.assert_allclose(c.logprobs, want, atol=1e-4)
            np.testing.assert_allclose(c.logprobs_full, want, atol=1e-4)
            assert c.logprobs.dtype == np.float32
            assert c.ids.dtype == np.int64
            assert c.version == 1


@pytest.mark.parametrize("kind", ["gpt2", "opt", "llama"])
def test_MATH_20_positions_do_not_depend_on_the_longest_prompt(tools, start, kind):
    """The log-probs of a row are equal alone and beside a much longer prompt."""
    engine = start(tools.build(kind))
    short, long_ = tools.prompts_of((3, 40))
    ask = tools.request(short, Sampling(n=2, max_tokens=8), uid="short")
    alone = engine.generate([ask])[0]
    beside = engine.generate([tools.request(long_, Sampling(max_tokens=8), uid="l"), ask])[1]
    for a, b in zip(alone, beside, strict=True):
        assert np.array_equal(a.ids, b.ids)
        np.testing.assert_allclose(a.logprobs, b.logprobs, atol=1e-5)


@pytest.mark.parametrize("kind", ["llama", "opt"])
def test_MATH_06_end_token_equal_to_pad_is_kept(tools, start, kind):
    """Prompts hold the id that pads, and the end token stays in the response, once, last."""
    model = tools.build(kind)
    engine = start(model)
    prompt = np.array([5, tools.EOS, 7, tools.EOS, 9])
    out = engine.generate(
        [
            tools.request(prompt, Sampling(n=64, max_tokens=30), uid="p"),
            tools.request(np.arange(3, 20), Sampling(max_tokens=3), uid="q"),
        ]
    )[0]
    ended = [c for c in out if not c.truncated]
    assert ended
    for c in out:
        want = tools.reference_logprobs(model, prompt, c.ids)
        np.testing.assert_allclose(c.logprobs, want, atol=1e-4)
        assert tools.EOS not in c.ids[:-1]
        assert (c.ids[-1] == tools.EOS) == (not c.truncated)


def test_MATH_07_length_comes_from_the_engine(tools, start):
    """A response cut by the limit has exactly max_tokens ids and no end token."""
    engine = start(tools.build("llama"))
    out = engine.generate([tools.request([4, 5], Sampling(n=40, max_tokens=6))])[0]
    cut = [c for c in out if c.truncated]
    assert cut
    for c in out:
        assert len(c.ids) == len(c.logprobs) == len(c.logprobs_full) <= 6
        assert not c.truncated or len(c.ids) == 6


@pytest.mark.parametrize("kind", ["llama", "qwen3", "gpt2", "gpt_neox"])
def test_bf16_agrees_with_the_model_in_bf16(tools, start, kind):
    model = tools.build(kind, gain=2.0)
    engine = start(model, dtype="bf16")
    prompt = tools.prompts_of((6,))[0]
    out = engine.generate([tools.request(prompt, Sampling(n=8, max_tokens=24))])[0]
    half = model.to(torch.bfloat16)
    for c in out:
        want = tools.reference_logprobs(half, prompt, c.ids)
        assert np.abs(c.logprobs - want).mean() < 0.05


def test_random_sizes_agree_with_a_plain_forward(tools, start):
    rng = np.random.default_rng(5)
    for trial in range(6):
        heads = int(rng.choice([1, 2, 3, 6]))
        config = {"num_hidden_layers": int(rng.integers(1, 4)), "num_attention_heads": heads}
        size = 2 * heads * int(rng.integers(2, 9))
        model = tools.build("odd_llama", seed=trial, hidden_size=size, **config)
        engine = start(
            model, slots=int(rng.integers(1, 6)), prefill_tokens=int(rng.integers(1, 40))
        )
        prompts = tools.prompts_of(rng.integers(1, 15, size=4), seed=trial, vocab=53)
        n, most = int(rng.integers(1, 5)), int(rng.integers(1, 9))
        ask = [
            tools.request(p, Sampling(n=n, max_tokens=most), uid=str(i))
            for i, p in enumerate(prompts)
        ]
        for prompt, completions in zip(prompts, engine.generate(ask), strict=True):
            for c in completions:
                want = tools.reference_logprobs(model, prompt, c.ids)
                np.testing.assert_allclose(c.logprobs, want, atol=1e-4)
