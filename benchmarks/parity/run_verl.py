"""Our numbers beside verl's own functions, on the same inputs: a table of largest differences.

verl 0.9.1 is put into a folder of its own (without its dependencies) and called in a process of
its own; nothing of it is re-typed. Each row sets our options to verl's convention.

    python benchmarks/parity/run_verl.py --out docs/results
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import numpy as np
import torch
from common import cache, machine, say
from safetensors.torch import load_file, save_file

from bestiary.batch import Rows
from bestiary.distributed.collectives import LocalReduce
from bestiary.kit import KLControl, KLPenalty
from bestiary.ops.kl import kl_estimate, kl_loss
from bestiary.ops.logits import entropy_from_logits
from bestiary.plugins.manager import load_plugins
from bestiary.protocols import ModelOutput
from bestiary.roles.row_weights import row_weights

HERE = Path(__file__).parent
REGISTRY = load_plugins().registry


def inputs(seed: int, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Groups of 5, 4 and 1 rows of different lengths."""
    rng = np.random.default_rng(seed)
    group = np.repeat([0, 1, 2], [5, 4, 1])
    n, width, vocab = len(group), 7, 11
    lengths = rng.integers(2, width + 1, n)
    mask = (np.arange(width)[None] < lengths[:, None]).astype(float)

    def tokens(scale: float = 1.0) -> np.ndarray:
        return rng.normal(size=(n, width)) * scale

    now = -np.abs(tokens()) - 0.05
    reward = rng.integers(0, 4, n) / 3.0
    token_rewards = np.zeros((n, width))
    token_rewards[np.arange(n), lengths - 1] = reward
    made = {
        "group": group, "mask": mask, "token_level_rewards": token_rewards, "reward": reward,
        "baseline": (rng.integers(0, 4, 3) / 3.0)[group], "values": tokens(),
        "old_values": tokens(), "returns": tokens(), "now": now, "old": now + tokens(0.4),
        "rollout": now + tokens(0.4), "ref": now + tokens(0.4),
        "advantages": np.where(mask > 0, rng.normal(size=(n, 1)), 0.0),
        "squared": np.abs(tokens(0.3)).clip(max=1.0), "logits": rng.normal(size=(n, width, vocab)),
        "kls": np.array([0.15, 0.3, 0.05, 0.1, 0.09]),
    }  # fmt: skip
    return {
        k: torch.from_numpy(np.ascontiguousarray(v)).to(dtype if v.dtype.kind == "f" else None)
        for k, v in made.items()
    }


def build(kind: str, name: str, **options: object) -> object:
    component = REGISTRY.get(kind, name)
    return component.build(component.options_class()(**options))


def rows(x: dict[str, torch.Tensor]) -> Rows:
    mask = x["mask"].bool()
    return Rows(
        {
            "reward": x["reward"], "baseline_reward": x["baseline"], "group": x["group"].long(),
            "valid": torch.ones(len(mask), dtype=torch.bool), "row_key": torch.arange(len(mask)),
            "response_len": mask.sum(-1),
            "values": x["values"], "old_logprobs": x["old"], "rollout_logprobs": x["rollout"],
            "ref_logprobs": x["ref"], "probs_squared": x["squared"],
            "advantages": x["advantages"],
        },
        mask,
    )  # fmt: skip


def estimators(x: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    every = rows(x)

    def run(name: str, on: Rows = every, **options: object) -> dict[str, torch.Tensor]:
        made = build("advantage", name, **options)(on, LocalReduce())
        wide = {}
        for key, column in made.items():
            if isinstance(column, torch.Tensor):
                wide[key] = column if column.dim() == 2 else column[:, None].expand(on.mask.shape)
                wide[key] = wide[key] * on.mask
        return wide

    gae = run("gae", gamma=0.99, lam=0.95)
    verl_rf = {"ddof": 1, "eps": 1e-8, "eps_mode": "var_plus"}
    pairs = torch.nonzero(x["group"] < 2)[:, 0]
    some = Rows({n: c[pairs] for n, c in every.items()}, every.mask[pairs])
    return {
        "gae": gae["advantages"],
        "gae.returns": gae["returns"],
        "grpo": run("group", singleton="scaled")["advantages"],
        "grpo.no_std": run("group", scale="none", singleton="raw")["advantages"],
        "grpo_vectorized": run("group", singleton="scaled")["advantages"],
        "reinforce_plus_plus": run("reinforce_pp", gamma=0.99, **verl_rf)["advantages"],
        "reinforce_plus_plus_baseline": run("reinforce_pp_baseline", singleton="raw", **verl_rf)[
            "advantages"
        ],
        "rloo": run("rloo", singleton="raw")["advantages"],
        "rloo_vectorized": run("rloo", singleton="zero")["advantages"],
        "remax": run("remax", kl="accumulated", clip=None)["advantages"],
        "opo": run("opo", singleton="raw")["advantages"],
        "gpg": run("gpg", singleton="raw")["advantages"],
        "otb": run("otb")["advantages"],
        "grpo_passk": run("pass_at_k", on=some)["advantages"],
    }


def losses(x: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    every = rows(x)
    lengths = every.mask.sum(-1).numpy()
    out: dict[str, torch.Tensor] = {}

    def run(name: str, loss: str, mode: str, **options: object) -> None:
        now, built, on = x["now"].clone().requires_grad_(), build("loss", loss, **options), every
        if built.options.selects:  # verl chooses by the current policy
            as_now = every.with_columns(old_logprobs=x["now"])
            on = every.with_columns(selected=built.prepare(as_now, LocalReduce())["selected"])
        per_token, _ = built(ModelOutput(logprobs=now), on)
        norm = float(every.mask.shape[1])  # verl's default constant: the padded width
        weights = torch.from_numpy(row_weights(lengths, mode, length_norm=norm))
        total = (per_token.double() * weights[:, None]).sum()
        out[name] = total.detach()
        out[f"{name}.grad"] = torch.autograd.grad(total, now)[0]

    clip = {"clip_low": 0.2, "clip_high": 0.28}
    for mode in ("token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean",
                 "seq-mean-token-sum-norm"):  # fmt: skip
        run(f"vanilla.{mode}", "clip", mode, dual_clip=3.0, **clip)
    wide = {"clip_low": 0.99, "clip_high": 99.0}
    run("clip_cov", "clip_cov", "token-mean", ratio=1.0, cov_low=0.05, cov_high=5.0, **wide)
    run("kl_cov", "kl_cov", "token-mean", ratio=0.2, kl_coef=0.7)
    run("gspo", "gspo", "seq-mean-token-mean")
    run("gspo.wide", "gspo", "seq-mean-token-mean", **clip)
    run("sapo", "sapo", "seq-mean-token-mean")
    run("loss.gpg", "reinforce", "token-mean")
    run("dro", "dro", "token-mean", beta=0.3)
    run("cispo", "cispo", "token-mean", **clip)
    run("geo_mean", "gmpo", "seq-mean-token-mean")
    run("dppo_tv", "dppo", "token-mean", threshold=0.05, cap=1.5)
    run("dppo_kl", "dppo", "token-mean", threshold=0.05, cap=1.5, divergence="kl")
    values = x["values"].clone().requires_grad_()
    on = Rows({"values": x["old_values"], "returns": x["returns"]}, every.mask)
    per_token, _ = build("loss", "value", clip=0.2)(ModelOutput(values=values), on)
    total = per_token.sum() / every.mask.sum()
    out["value"], out["value.grad"] = total.detach(), torch.autograd.grad(total, values)[0]
    return {**out, **kls(x, every)}


def kls(x: dict[str, torch.Tensor], every: Rows) -> dict[str, torch.Tensor]:
    out: dict[str, torch.Tensor] = {}
    kinds = {"kl": "k1", "abs": "abs", "mse": "k2", "low_var_kl": "k3"}
    for theirs, kind in kinds.items():
        now = x["now"].clone().requires_grad_()
        kl = kl_estimate(now, x["ref"], every.mask, kind=kind)
        out[f"kl.{theirs}"] = kl.detach()
        out[f"kl.{theirs}.grad"] = torch.autograd.grad(kl.sum(), now)[0]
    for theirs, kind in (("kl+", "k1"), ("low_var_kl+", "k3")):
        now = x["now"].clone().requires_grad_()
        kl = kl_loss(now, x["ref"], every.mask, kind=kind, gradient="straight_through_k2")
        out[f"kl.{theirs}"] = kl.detach()
        out[f"kl.{theirs}.grad"] = torch.autograd.grad(kl.sum(), now)[0]
    entropy = entropy_from_logits(x["logits"])
    out["entropy"] = (entropy * every.mask).sum() / every.mask.sum()
    return out


def corrections(x: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    every = rows(x)

    def weights(name: str, **options: object) -> torch.Tensor:
        return build("correction", name, **options)(every, LocalReduce())["token_weight"]

    return {
        "tis.token": weights("tis"),
        "tis.sequence": weights("tis", level="sequence"),
        "tis.normalised": weights("tis", normalise="mean"),
        "reject.token": weights("reject", criteria=(("token", 0.5, 2.0),)),
        "reject.geometric": weights("reject", criteria=(("geometric", 0.8, 1.25),)),
    }


def controller(x: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    control, found = KLControl(KLPenalty(coef=0.2, target=0.1, horizon=1000)), []
    for kl in x["kls"].tolist():
        control.step({"kl/reward": kl}, 64)
        found.append(control.coef)
    return {"controller": torch.tensor(found, dtype=torch.float64)}


def verl_folder() -> Path:
    """verl in a folder of its own, made on first use."""
    folder = cache() / "verl-0.9.1"
    if not (folder / ".installed").exists():
        say(f"putting verl into {folder} …")
        pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(folder)]
        subprocess.run([*pip, "-r", str(HERE / "verl.txt")], check=True)
        (folder / ".installed").touch()
    return folder


def theirs(x: dict[str, torch.Tensor], folder: Path) -> dict[str, torch.Tensor]:
    with tempfile.TemporaryDirectory() as temp:
        given, made = Path(temp) / "in.safetensors", Path(temp) / "out.safetensors"
        save_file({k: v.contiguous() for k, v in x.items()}, str(given))
        done = subprocess.run(
            [sys.executable, "-W", "ignore", str(HERE / "peer_verl.py"), str(given), str(made)],
            env={**os.environ, "PYTHONPATH": str(folder)}, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        if done.returncode:
            raise SystemExit(f"the peer failed:\n{done.stderr[-2000:]}")
        return load_file(str(made))


def compare(seed: int, dtype: torch.dtype, folder: Path) -> dict[str, float]:
    """Largest difference of each function, where the mask is True."""
    x = inputs(seed, dtype)
    wanted = theirs(x, folder)
    made = {**estimators(x), **losses(x), **corrections(x), **controller(x)}
    missing = sorted(set(made) ^ set(wanted))
    if missing:
        raise SystemExit(f"not on both sides: {missing}")
    mask, found = x["mask"].bool(), {}
    for name, ours in made.items():
        gap = (ours.double() - wanted[name].double()).abs()
        if gap.shape == mask.shape:
            gap = gap[mask]
        found[name] = float(gap.max())
    return found


def main() -> None:
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--seeds", type=int, default=20)
    p.add_argument("--out", type=Path)
    p.add_argument("--verl", type=Path, help="a folder that holds verl already")
    a = p.parse_args()
    folder = a.verl or verl_folder()
    worst: dict[str, dict[str, float]] = {}
    for dtype, label in ((torch.float64, "float64"), (torch.float32, "float32")):
        for seed in range(a.seeds):
            for name, gap in compare(seed, dtype, folder).items():
                row = worst.setdefault(name, {"float64": 0.0, "float32": 0.0})
                row[label] = max(row[label], gap)
    lines = ["| function of verl 0.9.1 | float64 | float32 |", "|---|---|---|"]
    lines += [f"| {n} | {w['float64']:.1e} | {w['float32']:.1e} |" for n, w in worst.items()]
    print("\n".join(lines))
    if a.out:
        content = {"machine": machine(), "seeds": a.seeds, "verl": "0.9.1", "largest": worst}
        (a.out / "parity_verl.json").write_text(json.dumps(content, indent=1))


if __name__ == "__main__":
    main()
