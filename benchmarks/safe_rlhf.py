"""Safe RLHF on a task with a known optimum, beside PPO without the constraint.

The task ``tradeoff`` has reward x and cost x², x the share of the letter a. Under E[x²] ≤ d the
best mean reward is √d, at the multiplier 1/(2√d). For each seed the mean training cost J_C over
the last half of the steps is compared with d. Fixed beforehand: the 90 % interval of J_C − d over
the seeds (t distribution) shall lie inside ±0.05, and the multiplier away from its bound.

    python benchmarks/safe_rlhf.py --out docs/results
"""

import argparse
import json
import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import mean, stdev

from common import bestiary, busy_cores, machine, say, scratch

THRESHOLD, DELTA, LENGTH = 0.36, 0.05, 10
SHARED = (
    "task=tradeoff", "model=tiny", "model.warm_start.steps=150", "placement=inprocess",
    "algorithm.samples=8", "algorithm.minibatches=2", "algorithm.critic_lr=1e-3",
    "train_engine.lr=2e-4", "eval.every=10", "checkpoint.at_end=false",
)  # fmt: skip
RUNS = {
    "safe_rlhf": ("algorithm=safe_rlhf", f"algorithm.threshold={THRESHOLD}",
                  "algorithm.lambda_lr=0.2"),
    "ppo": ("algorithm=ppo",),
}  # fmt: skip
T90 = {2: 6.314, 3: 2.920, 4: 2.353, 5: 2.132, 6: 2.015, 8: 1.895, 10: 1.833}
"""Two-sided 90 % quantile of Student's t for n seeds (n - 1 degrees of freedom)."""


def run(folder: Path, name: str, seed: int, steps: int) -> dict:
    records = bestiary(
        folder / f"{name}-{seed}", *RUNS[name], *SHARED, f"seed={seed}", f"steps={steps}"
    )
    trained = [r for r in records if r["step"] > 0]
    late = trained[len(trained) // 2 :]
    cost = "cost/mean" if name == "safe_rlhf" else "squared"
    for r in trained:  # PPO has no cost: its own mean reward bounds it from below, E[x²] ≥ E[x]²
        r.setdefault("squared", r["reward/mean"] ** 2)
    out = {
        "seed": seed,
        "reward": round(mean(r["reward/mean"] for r in late), 4),
        "cost": round(mean(r[cost] for r in late), 4),
        "curve": {
            "step": [int(r["step"]) for r in trained],
            "reward": [round(r["reward/mean"], 4) for r in trained],
            "cost": [round(r[cost], 4) for r in trained],
            "lambda": [round(r.get("lagrange/lambda", 0.0), 4) for r in trained],
        },
    }
    if name == "safe_rlhf":
        out["lambda"] = round(mean(r["lagrange/lambda"] for r in late), 4)
        out["lambda_largest"] = round(max(r["lagrange/lambda"] for r in trained), 4)
    say(f"{name} seed {seed}: reward {out['reward']:.3f}, cost {out['cost']:.3f}")
    return out


def interval(values: list[float]) -> tuple[float, float]:
    """The two-sided 90 % interval of the mean."""
    half = T90[len(values)] * stdev(values) / math.sqrt(len(values))
    return round(mean(values) - half, 4), round(mean(values) + half, 4)


def picture(found: dict[str, list[dict]], path: Path) -> None:
    """Reward, cost and multiplier over the steps."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 3, figsize=(12, 3.2))
    wanted = {
        "reward": math.sqrt(THRESHOLD), "cost": THRESHOLD, "lambda": 0.5 / math.sqrt(THRESHOLD)
    }  # fmt: skip
    for axis, (what, line) in zip(axes, wanted.items(), strict=True):
        for color, (name, runs) in zip(("C0", "C3"), found.items(), strict=True):
            for r in runs if what != "lambda" or name == "safe_rlhf" else ():
                axis.plot(r["curve"]["step"], r["curve"][what], color=color, alpha=0.6, lw=1)
        axis.axhline(line, color="black", ls="--", lw=1)
        axis.set_title({"lambda": "multiplier"}.get(what, what))
        axis.set_xlabel("step")
    axes[0].plot([], [], color="C0", label="Safe RLHF")
    axes[0].plot([], [], color="C3", label="PPO")
    axes[0].plot([], [], color="black", ls="--", label="optimum")
    axes[0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> None:
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    p.add_argument("--steps", type=int, default=60)
    p.add_argument("--jobs", type=int, default=2)
    p.add_argument("--out", type=Path)
    a = p.parse_args()
    if len(a.seeds) not in T90:
        raise SystemExit(f"--seeds: {len(a.seeds)} seeds; one of {sorted(T90)} is wanted")
    busy = busy_cores()
    with scratch() as root:
        run(Path(root), "ppo", 10**6, 1)  # makes the warm start
        jobs = [(name, seed) for seed in a.seeds for name in RUNS]
        with ThreadPoolExecutor(a.jobs) as threads:
            done = list(threads.map(lambda j: run(Path(root), *j, a.steps), jobs))
    found: dict[str, list[dict]] = {name: [] for name in RUNS}
    for (name, _), result in zip(jobs, done, strict=True):
        found[name].append(result)
    safe = found["safe_rlhf"]
    gap = interval([r["cost"] - THRESHOLD for r in safe])
    out = {
        "machine": machine(), "foreign_cores": busy, "threshold": THRESHOLD, "delta": DELTA,
        "steps": a.steps, "seeds": a.seeds,
        "violation_90": gap, "inside": gap[0] > -DELTA and gap[1] < DELTA,
        "reward": round(mean(r["reward"] for r in safe), 4),
        "optimum": round(math.sqrt(THRESHOLD), 4),
        "reward_gap": round(math.sqrt(THRESHOLD) - mean(r["reward"] for r in safe), 4),
        "lambda": round(mean(r["lambda"] for r in safe), 4),
        "lambda_theory": round(0.5 / math.sqrt(THRESHOLD), 4),
        "lambda_largest": max(r["lambda_largest"] for r in safe),
        "ppo_reward": round(mean(r["reward"] for r in found["ppo"]), 4),
        "ppo_cost_at_least": round(mean(r["cost"] for r in found["ppo"]), 4),
        "runs": found,
    }  # fmt: skip
    if a.out:
        a.out.mkdir(parents=True, exist_ok=True)
        (a.out / "safe_rlhf.json").write_text(json.dumps(out, indent=1))
        picture(found, a.out / "safe_rlhf.png")
    print(json.dumps(out, indent=1))


if __name__ == "__main__":
    main()
