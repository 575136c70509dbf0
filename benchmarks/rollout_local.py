#!/usr/bin/env python3
"""CPU seconds of the local rollout engine beside ``transformers.generate``, as JSON.

Three works: ``equal`` (every response as long as allowed), ``skew`` (four in five responses
short, the rest long) and ``demo`` (a 1.2M model, short answers, large groups). Runs of the two
sides alternate; the figures are medians of process CPU time, and the share of the machine that
others used meanwhile is recorded beside them.
"""

import argparse
import json
import logging
import math
import os
import statistics
import tempfile
import time
import warnings

PAD, BOS, EOS = 0, 1, 2
VOCAB = 512
LAST = 29
"""The token that ends each prompt."""


def arguments() -> argparse.Namespace:
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--work", nargs="+", default=["equal", "skew", "demo"])
    p.add_argument("--repeats", type=int, default=5)
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32")
    p.add_argument("--engine-only", action="store_true")
    return p.parse_args()


ARGS = arguments()
for var in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[var] = str(ARGS.threads)
os.environ["TRANSFORMERS_VERBOSITY"] = "error"
warnings.filterwarnings("ignore")
logging.disable(logging.WARNING)

import numpy as np  # noqa: E402
import torch  # noqa: E402
from transformers import LlamaConfig, LlamaForCausalLM  # noqa: E402

from bestiary.engines.checksum import Checksum  # noqa: E402
from bestiary.engines.engine_api import ModelSpec, Ranks, Request  # noqa: E402
from bestiary.engines.local.engine import LocalEngine  # noqa: E402
from bestiary.engines.local.options import LocalOptions  # noqa: E402
from bestiary.engines.local.streams import sample_key  # noqa: E402
from bestiary.protocols import Sampling  # noqa: E402

WORKS = {
    # prompts, samples, response tokens, hidden, inner size
    "equal": (16, 8, 32, 256, 1024),
    "skew": (16, 8, 256, 256, 1024),
    "demo": (32, 16, 5, 128, 512),
}


def build(hidden: int, inner: int) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=1024,
        tie_word_embeddings=False,
        pad_token_id=PAD,
        bos_token_id=BOS,
        eos_token_id=EOS,
    )
    model = LlamaForCausalLM(config).eval()
    model.generation_config.pad_token_id = PAD
    return model


@torch.no_grad()
def skew(model: LlamaForCausalLM) -> None:
    """Two classes of letters, each followed by its own class or by the end at its own hazard."""
    letters = list(range(100, 126))
    short, long_ = letters[:13], letters[13:]
    embed, head = model.model.embed_tokens.weight, model.lm_head.weight
    width, strength, up = embed.shape[1], 2.0, 12.0
    embed[:, :3] = 0
    head.zero_()
    for d, ids in ((0, short), (1, long_), (2, [LAST])):
        embed[ids, d] = strength
    # The value of that dimension after the root-mean-square norm.
    x = strength / math.sqrt((strength**2 + (width - 1) * 0.02**2) / width)
    for d, ids, hazard in ((0, short, 1 / 12), (1, long_, 1 / 200)):
        head[ids, d] = up / x
        head[EOS, d] = (up + math.log(len(ids)) + math.log(hazard / (1 - hazard))) / x
    head[short, 2] = (up + math.log(0.8)) / x
    head[long_, 2] = (up + math.log(0.2)) / x


def others_busy_s() -> float:
    """CPU seconds that all processes have used so far, less this one's."""
    with open("/proc/stat") as f:
        user, nice, system = (int(v) for v in f.readline().split()[1:4])
    return (user + nice + system) / os.sysconf("SC_CLK_TCK") - time.process_time()


def engine_of(model: LlamaForCausalLM, folder: str) -> LocalEngine:
    engine = LocalEngine(LocalOptions(), ModelSpec(path=folder, dtype=ARGS.dtype), Ranks())
    checksum = Checksum()
    engine.prepare(1)
    for name, parameter in model.named_parameters():
        checksum.add(name, parameter)
        engine.write({name: parameter})
    engine.commit(checksum.hexdigest())
    return engine


def measure(work: str) -> dict[str, object]:
    prompts, samples, new, hidden, inner = WORKS[work]
    model = build(hidden, inner)
    if work == "skew":
        skew(model)
    rng = np.random.default_rng(0)
    ids = rng.integers(30, 90, size=(prompts, 6))
    ids[:, -1] = LAST
    if work == "equal":
        # No end token, so that every response has the same length on both sides.
        model.config.eos_token_id = model.generation_config.eos_token_id = None
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        engine = engine_of(model, folder)
    if ARGS.dtype == "bf16":
        model = model.to(torch.bfloat16)
    sampling = Sampling(n=samples, max_tokens=new)

    def ours(run: int) -> int:
        requests = [
            Request(
                p, [sampling], [[sample_key(run, "bench", str(i), 0, j) for j in range(samples)]]
            )
            for i, p in enumerate(ids)
        ]
        return sum(len(c.ids) for cs in engine.generate(requests) for c in cs)

    def theirs(run: int) -> int:
        torch.manual_seed(run)
        tokens = torch.from_numpy(ids).repeat_interleave(samples, 0)
        out = model.generate(
            tokens,
            attention_mask=torch.ones_like(tokens),
            do_sample=True,
            top_k=0,
            max_new_tokens=new,
            pad_token_id=PAD,
        )[:, 6:]
        ends = (out == EOS).int()
        first = torch.where(ends.any(1), ends.argmax(1) + 1, out.shape[1])
        return int(first.sum()) if work != "equal" else out.numel()

    sides = {"engine": ours} if ARGS.engine_only else {"engine": ours, "transformers": theirs}
    cpu: dict[str, list[float]] = {name: [] for name in sides}
    tokens: dict[str, list[int]] = {name: [] for name in sides}
    wall, foreign, began = 0.0, others_busy_s(), time.perf_counter()
    for run in range(ARGS.repeats + 1):
        for name, side in sides.items():
            start = time.process_time()
            count = side(run)
            if run:  # the first one warms up
                cpu[name].append(time.process_time() - start)
                tokens[name].append(count)
    wall = time.perf_counter() - began
    result: dict[str, object] = {
        "prompts": prompts,
        "samples": samples,
        "max_tokens": new,
        "parameters": sum(p.numel() for p in model.parameters()),
        "foreign_cpu_share": round((others_busy_s() - foreign) / wall / (os.cpu_count() or 1), 3),
    }
    for name in sides:
        result[name] = {
            "cpu_s": round(statistics.median(cpu[name]), 4),
            "cpu_s_min": round(min(cpu[name]), 4),
            "response_tokens": round(statistics.mean(tokens[name])),
            "tokens_per_cpu_s": round(sum(tokens[name]) / sum(cpu[name])),
        }
    return result


def main() -> None:
    torch.set_num_threads(ARGS.threads)
    report = {
        "torch": torch.__version__,
        "threads": ARGS.threads,
        "dtype": ARGS.dtype,
        "works": {work: measure(work) for work in ARGS.work},
    }
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
