"""Prompt + response tokens per second of whole GRPO steps, beside TRL's GRPOTrainer, in one run.

The same model, prompts, group, lengths, dtype, cores and one update a batch. Runs alternate. For
each length model (uniform: every response has 32 tokens; skew: most are short and a few reach 256)
it prints the step's phases, TRL at its default and at its best setting, the ratios, and the step
against the arithmetic floor (multiplications of the linear layers at the rate that this machine
reaches on matrices of this size).

    python benchmarks/throughput.py                    both length models, fp32
    python benchmarks/throughput.py --lengths skew --repeats 1 --dtype bf16
"""

import argparse
import json
import random
import statistics
import time
from pathlib import Path

from common import (
    bestiary,
    busy_cores,
    machine,
    median,
    peer,
    peer_python,
    say,
    scratch,
    write_prompts,
)

REWARD = '''
def dense(samples):
    """Share of the answer's characters that are right."""
    return [sum(a == b for a, b in zip(s.response, s.answer)) / len(s.answer) for s in samples]
'''
WARMUP, STEPS = 2, 8
LENGTHS = {"uniform": ("random", 32), "skew": ("skew", 256)}
BEST = {
    "uniform": [["--micro", 64]],
    "skew": [["--micro", 16, "--cont-batching", "--cb-config",
              '{"max_batch_tokens": 512, "num_blocks": 512, "block_size": 32}'],
             ["--micro", 16]],
}  # fmt: skip
"""The fastest settings of TRL that were found, the next one where one fails (its continuous
batching does in bf16: an empty completion ends its step with an IndexError)."""


def problems(n: int, seed: int) -> list[tuple[str, str]]:
    """The peer's own prompts: a+b= of two-digit numbers."""
    rng = random.Random(seed)
    pairs = [(rng.randint(10, 99), rng.randint(10, 99)) for _ in range(n)]
    return [(f"{a}+{b}=", str(a + b)) for a, b in pairs]


def ours(folder: Path, number: int, model: Path, a: argparse.Namespace, new_tokens: int) -> dict:
    prompts = folder / "prompts.jsonl"
    if not prompts.exists():
        rows = list(dict.fromkeys(problems(4 * a.prompts * (WARMUP + STEPS), a.seed)))
        write_prompts(prompts, rows[: a.prompts * (WARMUP + STEPS)])
        write_prompts(folder / "held_out.jsonl", [("1+1=", "2")])
        (folder / "reward.py").write_text(REWARD)
    records = bestiary(
        folder / f"run-{number}",
        "algorithm=grpo", "task=jsonl", f"task.path={prompts}",
        f"task.eval_path={folder / 'held_out.jsonl'}", "reward=custom",
        f"reward.path={folder / 'reward.py'}:dense", "model=hf", f"model.path={model}",
        f"model.dtype={a.dtype}", f"algorithm.prompts={a.prompts}", f"algorithm.samples={a.group}",
        f"algorithm.max_tokens={new_tokens}", "sampler.shuffle=false", "train_engine.lr=1e-6",
        f"placement.workers={a.workers}", f"placement.threads={2 // a.workers}",
        f"steps={WARMUP + STEPS}", "eval.every=0", "eval.at_start=false", "eval.problems=1",
        "checkpoint.at_end=false", f"seed={a.seed}", *a.override,
    )  # fmt: skip
    steps = [r for r in records if r["step"] > WARMUP]
    phases = ("step", "rollout", "score", "update", "sync", "other")
    return {
        "tokens_per_s": median([r["throughput/tokens_per_s"] for r in steps]),
        "phase_s": {p: median([r.get(f"time/{p}_s", 0.0) for r in steps]) for p in phases},
        "mean_response_len": median([r["response_len/mean"] for r in steps]),
    }


def theirs(python: str, model: Path, a: argparse.Namespace, new_tokens: int, extra: list) -> dict:
    out = peer(
        python, "--model", model, "--prompts", a.prompts, "--group", a.group, "--new-tokens",
        new_tokens, "--steps", STEPS, "--warmup", WARMUP, "--threads", 2, "--dtype", a.dtype,
        "--seed", a.seed, *extra,
    )  # fmt: skip
    keys = ("tokens_per_s", "phase_s", "mean_response_len", "real_over_padded")
    return {k: out[k] for k in keys}


def their_best(python: str, model: Path, a: argparse.Namespace, new_tokens: int, settings: list,
               failed: list) -> dict:  # fmt: skip
    """The first settings that TRL gets through; why others did not is added to ``failed``."""
    for extra in settings:
        if any(f["settings"] == extra for f in failed):
            continue
        try:
            return theirs(python, model, a, new_tokens, extra)
        except SystemExit as error:
            failed.append({"settings": extra, "error": str(error).strip().splitlines()[-1]})
            say(f"trl failed with {extra}: {failed[-1]['error']}")
    raise SystemExit(f"TRL fails with all of its settings: {failed}")


def floor(parameters: int, prompt_tokens: int, response_tokens: int) -> dict:
    """Seconds of the linear layers' multiplications at the machine's own rate."""
    import torch

    torch.set_num_threads(2)
    x, w = torch.randn(2048, 256), torch.randn(1024, 256)
    rates = []
    for _ in range(20):
        began = time.perf_counter()
        for _ in range(10):
            torch.nn.functional.linear(x, w)
        rates.append(10 * 2 * 2048 * 256 * 1024 / (time.perf_counter() - began))
    rate = statistics.median(rates)
    generate = 2 * parameters * (prompt_tokens + response_tokens) / rate
    update = 6 * parameters * (prompt_tokens + response_tokens) / rate
    return {"gflops": round(rate / 1e9), "generate_s": round(generate, 3),
            "update_s": round(update, 3), "step_s": round(generate + update, 3)}  # fmt: skip


def compare(python: str, lengths: str, a: argparse.Namespace, folder: Path) -> dict:
    init, new_tokens = LENGTHS[lengths]
    model = folder / f"model-{lengths}"
    peer(python, "--save-model", model, "--init", init, "--seed", a.seed)
    mine, default, best = [], [], []
    foreign, failed = [], []
    for number in range(a.repeats):
        for name, runs, run in (
            ("bestiary", mine, lambda n=number: ours(folder, n, model, a, new_tokens)),
            ("trl default", default, lambda: theirs(python, model, a, new_tokens, [])),
            (
                "trl best",
                best,
                lambda: their_best(python, model, a, new_tokens, BEST[lengths], failed),
            ),
        ):
            foreign.append(busy_cores())
            runs.append(run())
            say(f"{lengths} {name}: {runs[-1]['tokens_per_s']} tok/s")
    out = {"bestiary": mine, "trl_default": default, "trl_best": best, "foreign_cores": foreign,
           "trl_failed": failed}  # fmt: skip
    rate = {k: median([r["tokens_per_s"] for r in out[k]]) for k in list(out)[:3]}
    step = median([r["phase_s"]["step"] for r in mine])
    responses = a.prompts * a.group * median([r["mean_response_len"] for r in mine])
    least = floor(parameters(model), a.prompts * 6, int(responses))
    out |= {
        "median_tokens_per_s": rate,
        "ratio_to_default": round(rate["bestiary"] / rate["trl_default"], 2),
        "ratio_to_best": round(rate["bestiary"] / max(rate["trl_best"], rate["trl_default"]), 2),
        "floor": least,
        "step_over_floor": round(step / least["step_s"], 2),
    }
    return out


def parameters(model: Path) -> int:
    """Parameters of the linear layers, embeddings apart."""
    from safetensors import safe_open

    total = 0
    with safe_open(str(model / "model.safetensors"), "pt") as file:
        for name in file.keys():  # noqa: SIM118 - not a mapping
            shape = file.get_slice(name).get_shape()
            total += shape[0] * shape[1] if len(shape) == 2 and "embed" not in name else 0
    return total


def main() -> None:
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--lengths", nargs="+", choices=list(LENGTHS), default=list(LENGTHS))
    p.add_argument("--prompts", type=int, default=16)
    p.add_argument("--group", type=int, default=8)
    p.add_argument("--repeats", type=int, default=3)
    p.add_argument("--workers", type=int, default=2, choices=[1, 2])
    p.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--trl-python", default="", help="an existing environment with TRL")
    p.add_argument("override", nargs="*", help="further settings of our run, key=value")
    a = p.parse_args()
    python = peer_python(a.trl_python)
    settings = {k: v for k, v in vars(a).items() if k != "trl_python"}
    out = {"machine": machine(), "settings": settings, "trl": "1.16.0"}
    with scratch() as folder:
        for lengths in a.lengths:
            place = Path(folder) / lengths
            place.mkdir()
            out[lengths] = compare(python, lengths, a, place)
    print(json.dumps(out, indent=1))


if __name__ == "__main__":
    main()
