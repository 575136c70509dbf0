"""Tiny random models on disk, and engines that got their weights the way the trainer gives them."""

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from bestiary.engines.checksum import Checksum
from bestiary.engines.engine_api import ModelSpec, Ranks, Request
from bestiary.engines.local.engine import LocalEngine
from bestiary.engines.local.options import LocalOptions
from bestiary.engines.local.streams import sample_key

EOS = 2
VOCAB = 97

_COMMON = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": EOS,
    "pad_token_id": EOS,  # the usual case of chat models: padding equals the end token
}
_GQA = {**_COMMON, "num_key_value_heads": 2}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
_LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}
_DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
_GPT2 = {
    "vocab_size": VOCAB,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 64,
    "bos_token_id": 1,
    "eos_token_id": EOS,
    "pad_token_id": EOS,
}
_OPT = {**_COMMON, "ffn_dim": 64, "word_embed_proj_dim": 32}

BUILDERS = {
    "llama": lambda **k: LlamaForCausalLM(LlamaConfig(**{**_GQA, **k})),
    "llama_tied": lambda **k: LlamaForCausalLM(LlamaConfig(**_GQA, tie_word_embeddings=True, **k)),
    "llama_biased": lambda **k: LlamaForCausalLM(
        LlamaConfig(**_COMMON, attention_bias=True, mlp_bias=True, **k)
    ),
    "odd_llama": lambda **k: LlamaForCausalLM(
        LlamaConfig(**{**_COMMON, "vocab_size": 53, "intermediate_size": 37, **k})
    ),
    "llama_head_dim": lambda **k: LlamaForCausalLM(LlamaConfig(**_GQA, head_dim=12, **k)),
    "llama3_rope": lambda **k: LlamaForCausalLM(LlamaConfig(**_GQA, rope_parameters=_LLAMA3, **k)),
    "linear_rope": lambda **k: LlamaForCausalLM(LlamaConfig(**_GQA, rope_parameters=_LINEAR, **k)),
    "mistral": lambda **k: MistralForCausalLM(MistralConfig(**_GQA, sliding_window=None, **k)),
    "qwen2": lambda **k: Qwen2ForCausalLM(Qwen2Config(**_GQA, **k)),
    "qwen3": lambda **k: Qwen3ForCausalLM(Qwen3Config(**_GQA, head_dim=16, **k)),
    "gpt2": lambda **k: GPT2LMHeadModel(GPT2Config(**{**_GPT2, **k})),
    # The generic path: no hand-written step, or a setting that it does not have.
    "gpt_neox": lambda **k: GPTNeoXForCausalLM(GPTNeoXConfig(**_COMMON, **k)),
    "opt": lambda **k: OPTForCausalLM(OPTConfig(**_OPT, **k)),
    "mistral_windowed": lambda **k: MistralForCausalLM(
        MistralConfig(**_GQA, sliding_window=6, **k)
    ),
    "dynamic_rope": lambda **k: LlamaForCausalLM(
        LlamaConfig(**_GQA, rope_parameters=_DYNAMIC, **k)
    ),
}


def build(kind, seed=0, gain=4.0, **config):
    """A model whose random weights are large enough for distinct, uneven distributions."""
    torch.manual_seed(seed)
    model = BUILDERS[kind](**config).eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.dim() > 1:
                p.mul_(gain)
            elif name.endswith("bias"):
                p.normal_(std=0.5)
            else:
                p.add_(torch.randn_like(p) * 0.2)
    return model


def commit(engine, model, version=1):
    checksum = Checksum()
    engine.prepare(version)
    for name, parameter in model.named_parameters():
        checksum.add(name, parameter)
        engine.write({name: parameter})
    engine.commit(checksum.hexdigest())


def byte_tokenizer(folder):
    vocab = {"<pad>": 0, "<bos>": 1, "<eos>": EOS}
    for char in sorted(pre_tokenizers.ByteLevel.alphabet()):
        vocab[char] = len(vocab)
    raw = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    raw.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=raw, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>"
    )
    tokenizer.save_pretrained(folder)
    return tokenizer


def request(prompt, *samplings, uid="", seed=0):
    """One prompt; the streams depend on uid, sampling and sample only."""
    keys = [
        [sample_key(seed, f"s{k}", uid, 0, j) for j in range(s.n)] for k, s in enumerate(samplings)
    ]
    return Request(np.asarray(prompt, dtype=np.int64), samplings, keys)


def prompts_of(lengths, seed=0, vocab=VOCAB):
    rng = np.random.default_rng(seed)
    return [rng.integers(3, vocab, size=n) for n in lengths]


def reference_logprobs(model, prompt, ids, temperature=1.0):
    """Log-probabilities by one plain forward of prompt and response."""
    whole = torch.from_numpy(np.concatenate([prompt, ids]))[None]
    with torch.no_grad():
        logits = model(whole).logits[0, len(prompt) - 1 : -1].float() / temperature
    return torch.log_softmax(logits, -1).gather(1, torch.from_numpy(ids)[:, None])[:, 0].numpy()


@pytest.fixture
def tools():
    """The functions above, for test modules (which cannot import a conftest)."""
    from types import SimpleNamespace

    return SimpleNamespace(
        build=build,
        commit=commit,
        request=request,
        prompts_of=prompts_of,
        reference_logprobs=reference_logprobs,
        byte_tokenizer=byte_tokenizer,
        EOS=EOS,
        VOCAB=VOCAB,
    )


@pytest.fixture
def start(tmp_path):
    """An engine with the weights of a model committed."""

    def go(model, *, dtype="fp32", tokenizer=False, weights=True, **options):
        model.save_pretrained(tmp_path / "model")
        if tokenizer:
            byte_tokenizer(tmp_path / "model")
        spec = ModelSpec(path=str(tmp_path / "model"), dtype=dtype)
        engine = LocalEngine(LocalOptions(**options), spec, Ranks())
        if weights:
            commit(engine, model)
        return engine

    return go
