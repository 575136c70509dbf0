"""CPU seconds of one optimizer step: the training engine beside a plain padded transformers step.

    python benchmarks/update_step.py [--work equal skewed demo] [--dtype fp32] [--threads 1]

Prints one JSON object. Both sides update the same model on the same rows with the same loss and
AdamW; the runs alternate, and each figure is the median of process CPU time. ``foreign_cpu_s`` is
what other processes used meanwhile (from /proc/stat), so a busy machine can be seen.

The peer is what a trainer does that pads: micro-batches of 16 rows, right-padded to the longest,
logits on the response positions only.
"""

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from dataclasses import dataclass


@dataclass(frozen=True)
class Work:
    """Rows of prompts × group with response lengths, and the model's shape."""

    hidden: int
    layers: int
    vocab: int
    prompts: int
    group: int
    prompt_len: int
    lengths: str


WORKS = {
    "equal": Work(256, 4, 512, 16, 8, 6, "32"),
    "skewed": Work(256, 4, 512, 16, 8, 6, "skewed"),
    "demo": Work(128, 4, 259, 32, 16, 6, "5"),
}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", nargs="+", default=list(WORKS), choices=list(WORKS))
    parser.add_argument("--dtype", default="fp32", choices=["fp32", "bf16"])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--tokens-per-micro", type=int, default=0)
    parser.add_argument("--no-fast-linear", action="store_true")
    parser.add_argument("--no-peer", action="store_true")
    return parser.parse_args()


def foreign_cpu(own):
    """CPU seconds of the whole machine, less this process's."""
    with open("/proc/stat") as stat:
        user, nice, system = (int(x) for x in stat.readline().split()[1:4])
    return (user + nice + system) / os.sysconf("SC_CLK_TCK") - own


def make_model(folder, work):
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=work.vocab,
        hidden_size=work.hidden,
        intermediate_size=4 * work.hidden,
        num_hidden_layers=work.layers,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=1024,
        tie_word_embeddings=False,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    LlamaForCausalLM(config).save_pretrained(folder)


def make_rows(work):
    import numpy as np

    from bestiary.batch import Ragged, RowBlock

    rng = np.random.default_rng(0)
    n = work.prompts * work.group
    prompts = rng.integers(3, work.vocab, (work.prompts, work.prompt_len))
    if work.lengths == "skewed":
        short = rng.geometric(1 / 12, n)
        long_ = rng.geometric(1 / 200, n)
        lengths = np.minimum(np.where(rng.random(n) < 0.8, short, long_), 256)
    else:
        lengths = np.full(n, int(work.lengths))
    responses = Ragged.from_lengths(rng.integers(3, work.vocab, int(lengths.sum())), lengths)
    return RowBlock(
        {
            "prompt_ids": Ragged.from_rows(list(prompts.repeat(work.group, 0)), np.int64),
            "response_ids": responses,
        },
        {"advantages": rng.normal(size=n)},
    )


class Surrogate:
    """The clipped policy loss."""

    def __init__(self):
        from bestiary.protocols import LossOptions

        self.options = LossOptions()

    def __call__(self, now, x):
        from bestiary.ops.policy import clipped_surrogate

        advantages = x["advantages"].float()
        return clipped_surrogate(now.logprobs, x["old_logprobs"], advantages, x.mask), {}


class Ours:
    def __init__(self, folder, rows, args):
        import numpy as np

        from bestiary.engines.engine_api import ModelSpec, Ranks, TermJob, UpdatePart
        from bestiary.engines.fsdp.engine import FSDPEngine
        from bestiary.engines.fsdp.options import FSDPOptions
        from bestiary.engines.microbatch import plan_microbatches
        from bestiary.protocols import ComponentRef

        extra = {"tokens_per_micro": args.tokens_per_micro} if args.tokens_per_micro else {}
        options = FSDPOptions(lr=1e-6, fast_linear=not args.no_fast_linear, **extra)
        loss = Surrogate()
        spec = ModelSpec(path=folder, dtype=args.dtype)
        self.engine = FSDPEngine(options, spec, Ranks(), lambda ref: loss)
        prompts, responses = rows.tokens["prompt_ids"], rows.tokens["response_ids"]
        _, same = np.unique([prompts.row(i) for i in range(len(rows))], axis=0, return_inverse=True)
        plan = plan_microbatches(
            prompts.lengths,
            responses.lengths,
            same,
            world=1,
            tokens_per_micro=options.tokens_per_micro,
        ).ranks[0]
        weights = np.full(len(rows), 1.0 / responses.lengths.sum())
        term = TermJob(ComponentRef("loss", "surrogate"), weights)
        self.part = UpdatePart(rows=rows.take(plan.rows), micro=plan.micro, terms=[term])

    def __call__(self):
        return self.engine.update([self.part])["grad_norm"].value


class Padded:
    def __init__(self, folder, rows, args):
        import torch
        from transformers import AutoModelForCausalLM

        from bestiary.batch import Rows

        self.bf16 = args.dtype == "bf16"
        self.model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="sdpa"
        )
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-6)
        self.rows = Rows.from_block(rows)
        self.total = int(self.rows.mask.sum())
        self.loss = Surrogate()

    def __call__(self):
        import torch

        from bestiary.batch import Rows
        from bestiary.protocols import ModelOutput

        self.optimizer.zero_grad()
        for start in range(0, self.rows.size, 16):
            cut = {k: v[start : start + 16] for k, v in self.rows.items()}
            mask = self.rows.mask[start : start + 16]
            width = int(mask.sum(1).max())
            mask, response = mask[:, :width], cut["response_ids"][:, :width]
            ids = torch.cat([cut["prompt_ids"], response], 1)
            live = torch.cat([torch.ones_like(cut["prompt_ids"]), mask.long()], 1)
            with torch.autocast("cpu", torch.bfloat16, enabled=self.bf16):
                out = self.model(
                    input_ids=ids, attention_mask=live, use_cache=False, logits_to_keep=width + 1
                )
            logits = out.logits[:, :-1].float()
            logprobs = logits.log_softmax(-1).gather(-1, response[..., None])[..., 0]
            x = Rows({**cut, "old_logprobs": logprobs.detach()}, mask)
            loss, _ = self.loss(ModelOutput(logprobs=logprobs), x)
            (loss.sum() / self.total).backward()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return float(norm)


def measure(run):
    own, start = time.process_time(), time.perf_counter()
    foreign = foreign_cpu(own)
    norm = run()
    used = time.process_time() - own
    wall = time.perf_counter() - start
    other = max(0.0, foreign_cpu(time.process_time()) - foreign)
    return {"cpu_s": used, "wall_s": wall, "foreign_cpu_s": other, "grad_norm": norm}


def bench(name, args):
    work = WORKS[name]
    with tempfile.TemporaryDirectory() as folder:
        make_model(folder, work)
        rows = make_rows(work)
        sides = {"engine": Ours(folder, rows, args)}
        if not args.no_peer:
            sides["padded"] = Padded(folder, rows, args)
        found = {side: [] for side in sides}
        first = {side: measure(run)["grad_norm"] for side, run in sides.items()}
        for _ in range(args.repeats):
            for side, run in sides.items():
                found[side].append(measure(run))
    lengths = rows.tokens["response_ids"].lengths
    tokens = int(lengths.sum() + rows.tokens["prompt_ids"].lengths.sum())
    result = {"rows": len(rows), "tokens": tokens, "mean_response": float(lengths.mean())}
    for side, runs in found.items():
        median = {k: statistics.median(r[k] for r in runs) for k in ("cpu_s", "wall_s")}
        result[side] = {
            **{k: round(v, 4) for k, v in median.items()},
            "best_cpu_s": round(min(r["cpu_s"] for r in runs), 4),
            "foreign_cpu_s": round(sum(r["foreign_cpu_s"] for r in runs), 2),
            "first_grad_norm": first[side],
            "tokens_per_cpu_s": round(tokens / median["cpu_s"]),
        }
    if "padded" in found:
        result["speedup"] = round(result["padded"]["cpu_s"] / result["engine"]["cpu_s"], 3)
    return result


def main():
    args = arguments()
    os.environ["OMP_NUM_THREADS"] = str(args.threads)
    import torch
    import transformers

    torch.set_num_threads(args.threads)
    transformers.utils.logging.disable_progress_bar()
    out = {
        "machine": platform.processor() or platform.machine(),
        "cpus": os.cpu_count(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "dtype": args.dtype,
        "threads": args.threads,
        "work": {name: bench(name, args) for name in args.work},
    }
    print(json.dumps(out, indent=1))


if __name__ == "__main__":
    main()
