"""Our losses and advantages beside those of TRL's own trainers, on the same inputs.

TRL 1.16 lives in an environment of its own (the one of the other comparisons).

    python benchmarks/parity/run_trl.py --out docs/results
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]
import torch
from common import machine, peer_python
from run_verl import build, inputs
from safetensors.torch import load_file, save_file

from bestiary.batch import Rows
from bestiary.distributed.collectives import LocalReduce
from bestiary.ops.logits import entropy_from_logits, token_logprobs
from bestiary.protocols import ModelOutput
from bestiary.roles.row_weights import row_weights

HERE = Path(__file__).parent


def given(seed: int, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    x = inputs(seed, dtype)
    x["sequence_advantages"] = x["advantages"][:, 0].contiguous()
    generator = torch.Generator().manual_seed(seed)
    x["ids"] = torch.randint(0, x["logits"].shape[-1], x["mask"].shape, generator=generator)
    groups, each = 5, 4
    per_func = torch.randint(0, 4, (groups * each, 2), generator=generator).to(dtype) / 3
    per_func[3] = torch.nan  # nothing could score it
    per_func[9, 1] = torch.nan  # one of the two could
    per_func[4 * each :] = 1.0  # a group of equal rewards
    x["rewards_per_func"], x["num_generations"] = per_func, torch.tensor(each)
    x["reward_weights"] = torch.tensor([1.0, 0.5], dtype=dtype)
    return x


def advantages(x: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """One number a sample, from the same rewards."""
    per_func, weights = x["rewards_per_func"], x["reward_weights"]
    each = int(x["num_generations"])
    valid = ~per_func.isnan().all(dim=1)
    parts = [{f"r{k}": float(v) for k, v in enumerate(row) if not v.isnan()} for row in per_func]
    every = Rows(
        {
            "reward": (per_func * weights).nansum(dim=1), "valid": valid,
            "group": torch.arange(len(per_func)) // each,
            "response_len": torch.ones(len(per_func)),
        },
        torch.ones(len(per_func), 1, dtype=torch.bool),
        {"parts": parts},
    )  # fmt: skip
    both = {f"r{k}": float(w) for k, w in enumerate(weights)}

    def run(name: str, **options: object) -> torch.Tensor:
        return build("advantage", name, **options)(every, LocalReduce())["advantages"]

    return {
        "adv.group": run("group", eps=1e-4),
        "adv.none": run("group", scale="none"),
        "adv.batch": run("group", scale="batch_std", eps=1e-4),
        "adv.gdpo": run("gdpo", weights=both, eps=1e-4, whiten="sample"),
        "adv.rloo": run("rloo"),
        "adv.rloo.whitened": run("rloo", whiten="sample"),
    }


def ours(x: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    mask = x["mask"].bool()
    wide = x["sequence_advantages"][:, None].expand(mask.shape)
    every = Rows({"old_logprobs": x["old"], "ref_logprobs": x["ref"], "advantages": wide}, mask)
    lengths, width = mask.sum(-1).numpy(), float(mask.shape[1])
    out: dict[str, torch.Tensor] = {}

    def run(name: str, loss: str, mode: str, kl: float = 0.0, **options: object) -> None:
        now = x["now"].clone().requires_grad_()
        weights = torch.from_numpy(row_weights(lengths, mode, length_norm=width))[:, None]
        per_token, _ = build("loss", loss, **options)(ModelOutput(logprobs=now), every)
        total = (per_token.double() * weights).sum()
        if kl:
            term, _ = build("loss", "kl")(ModelOutput(logprobs=now), every)
            total = total + kl * (term.double() * weights).sum()
        out[name] = total.detach()
        out[f"{name}.grad"] = torch.autograd.grad(total, now)[0]

    run("grpo", "clip", "seq-mean-token-mean")
    run("grpo.kl", "clip", "seq-mean-token-mean", kl=0.04)
    run("bnpo", "clip", "token-mean")
    run("dr_grpo", "clip", "seq-mean-token-sum-norm")
    run("dapo", "clip", "token-mean", clip_high=0.28)
    run("cispo", "cispo", "token-mean", clip_high=0.28)  # TRL bounds the weight itself
    run("sapo", "sapo", "seq-mean-token-mean")
    run("gspo", "gspo", "seq-mean-token-mean")
    out.update(advantages(x))
    out["logps"] = token_logprobs(x["logits"], x["ids"].long())
    out["entropies"] = entropy_from_logits(x["logits"])
    return out


def theirs(x: dict[str, torch.Tensor], python: str) -> dict[str, torch.Tensor]:
    with tempfile.TemporaryDirectory() as temp:
        sent, made = Path(temp) / "in.safetensors", Path(temp) / "out.safetensors"
        save_file({k: v.contiguous() for k, v in x.items()}, str(sent))
        env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        command = [python, "-W", "ignore", str(HERE / "peer_trl.py"), str(sent), str(made)]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"the peer failed:\n{done.stderr[-2000:]}")
        return load_file(str(made))


def main() -> None:
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--seeds", type=int, default=5)
    p.add_argument("--trl-python", default="", help="an existing environment with TRL")
    p.add_argument("--out", type=Path)
    a = p.parse_args()
    python = peer_python(a.trl_python)
    worst: dict[str, dict[str, float]] = {}
    for dtype, label in ((torch.float64, "float64"), (torch.float32, "float32")):
        for seed in range(a.seeds):
            x = given(seed, dtype)
            mask, wanted = x["mask"].bool(), theirs(x, python)
            for name, found in ours(x).items():
                gap = (found.double() - wanted[name].double()).abs()
                gap = gap[mask] if gap.shape == mask.shape else gap
                row = worst.setdefault(name, {"float64": 0.0, "float32": 0.0})
                row[label] = max(row[label], float(gap.max()))
    lines = ["| TRL 1.16 | float64 | float32 |", "|---|---|---|"]
    lines += [f"| {n} | {w['float64']:.1e} | {w['float32']:.1e} |" for n, w in worst.items()]
    print("\n".join(lines))
    if a.out:
        content = {"machine": machine(), "seeds": a.seeds, "trl": "1.16", "largest": worst}
        (a.out / "parity_trl.json").write_text(json.dumps(content, indent=1))


if __name__ == "__main__":
    main()
