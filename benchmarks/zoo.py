"""Every algorithm on two-digit addition: the same warm start, prompts, rows a step and steps.

Each algorithm draws 16 rows for each of 32 prompts a step (ReMax: 15 and the greedy one), so all
generate about as many tokens. Learning rate, optimizer and evaluation are equal too; everything
else is the algorithm's own default, nothing is tuned. Held-out exact match is sampled at
temperature 1 (mean of 4), greedy beside it. Prints JSON; ``--out FOLDER`` also writes a table and
a picture. Five seeds are a smoke test: no ranking follows from them.

    python benchmarks/zoo.py --seeds 0 1 2 3 4 --out docs/results
    python benchmarks/zoo.py --only ppo remax --steps 20
"""

import argparse
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import mean

from common import bestiary, busy_cores, machine, say, scratch

SHARED = (
    "task=addition", "model=tiny", "model.warm_start.steps=330", "placement=inprocess",
    "algorithm.prompts=32",
    "train_engine.lr=1e-4", "train_engine.warmup_steps=10", "checkpoint.at_end=false",
    "eval.every=10", "eval.problems=256", "eval.samples=4",
)  # fmt: skip

GROUPED = ("algorithm.samples=16", "algorithm.minibatches=2")
CRITIC = ("algorithm.samples=16", "algorithm.minibatches=2", "algorithm.critic_lr=1e-3")

ZOO: dict[str, tuple[str, ...]] = {
    "grpo": GROUPED,
    "dr_grpo": GROUPED,
    "dapo": GROUPED,
    "gspo": GROUPED,
    "cispo": GROUPED,
    "sapo": GROUPED,
    "gmpo": GROUPED,
    "pass_at_k": GROUPED,
    "reinforce": ("algorithm.samples=16",),
    "rloo": ("algorithm.samples=16",),
    "reinforce_pp": GROUPED,
    "reinforce_pp_baseline": GROUPED,
    "opo": ("algorithm.samples=16",),
    "gpg": ("algorithm.samples=16",),
    "otb": ("algorithm.samples=16",),
    "remax": ("algorithm.samples=15",),
    "ppo": CRITIC,
    "ppo, shared trunk": (*GROUPED, "algorithm.shared_trunk=true"),
    "ppo, V-trace": (*CRITIC, "advantage=vtrace"),
    "raft": ("algorithm.samples=16", "algorithm.threshold=1"),
    "online_dpo": ("algorithm.samples=16",),
}
"""Label → settings; the label's first word up to a comma is the algorithm."""


def run(folder: Path, label: str, seed: int, a: argparse.Namespace) -> dict:
    """One run's curve, with the tokens and seconds that it took."""
    name = label.partition(",")[0]
    where = folder / f"{label.replace(', ', '-').replace(' ', '_')}-{seed}"
    records = bestiary(
        where, f"algorithm={name}", *SHARED, *ZOO[label], f"seed={seed}", f"steps={a.steps}",
        *a.override,
    )  # fmt: skip
    points = [r for r in records if "eval/exact_match" in r]
    say(f"{label} seed {seed}: {points[0]['eval/exact_match']:.3f} -> "
        f"{points[-1]['eval/exact_match']:.3f}")  # fmt: skip
    return {
        "steps": [int(r["step"]) for r in points],
        "sampled": [r["eval/exact_match"] for r in points],
        "greedy": [r["eval/greedy"] for r in points],
        "tokens": int(records[-1]["data/tokens_generated"]),
        "seconds": round(sum(r.get("time/step_s", 0.0) for r in records), 2),
    }


def summary(runs: list[dict]) -> dict:
    """What the table shows of one algorithm."""
    gains = [r["sampled"][-1] - r["sampled"][0] for r in runs]
    return {
        "before": round(mean(r["sampled"][0] for r in runs), 3),
        "after": round(mean(r["sampled"][-1] for r in runs), 3),
        "greedy": round(mean(r["greedy"][-1] for r in runs), 3),
        "gain": round(mean(gains), 3),
        "least_gain": round(min(gains), 3),
        "tokens": round(mean(r["tokens"] for r in runs)),
        "seconds": round(mean(r["seconds"] for r in runs), 1),
    }


def table(found: dict[str, dict], a: argparse.Namespace) -> str:
    """The results as Markdown."""
    lines = [
        "| algorithm | before | after | greedy | mean gain | least gain | tokens | s |",
        "|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {label} | {s['before']:.3f} | {s['after']:.3f} | {s['greedy']:.3f} | {s['gain']:+.3f} "
        f"| {s['least_gain']:+.3f} | {s['tokens']:,} | {s['seconds']:.0f} |"
        for label, s in found.items()
    ]
    seeds = " ".join(map(str, a.seeds))
    return "\n".join([f"`python benchmarks/zoo.py --steps {a.steps} --seeds {seeds}`", "", *lines])


def picture(curves: dict[str, list[dict]], path: Path) -> None:
    """Mean held-out curves with the band between the least and the largest seed."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    across = 4
    down = -(-len(curves) // across)
    figure, grid = plt.subplots(
        down, across, figsize=(12, 2.2 * down), sharex=True, sharey=True, squeeze=False
    )
    for axis, (label, runs) in zip(grid.flat, curves.items(), strict=False):
        steps = runs[0]["steps"]
        columns = list(zip(*(r["sampled"] for r in runs), strict=True))
        axis.fill_between(steps, [min(c) for c in columns], [max(c) for c in columns], alpha=0.25)
        axis.plot(steps, [mean(c) for c in columns])
        axis.set_title(label, fontsize=9)
        axis.grid(alpha=0.3)
    for axis in list(grid.flat)[len(curves) :]:
        axis.axis("off")
    figure.supxlabel("step")
    figure.supylabel("held-out exact match, sampled")
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> None:
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    p.add_argument("--only", nargs="+", default=[], help="algorithms; all by default")
    p.add_argument("--steps", type=int, default=40)
    p.add_argument("--jobs", type=int, default=2, help="runs at once, one thread each")
    p.add_argument("--out", type=Path, help="folder for zoo.json, zoo.md's table and zoo.png")
    p.add_argument("--override", nargs="*", default=[], help="further settings, key=value")
    a = p.parse_args()
    unknown = sorted({*a.only} - {*ZOO})
    if unknown:
        raise SystemExit(f"no {', '.join(unknown)} in the zoo; there are: {', '.join(ZOO)}")
    labels = a.only or list(ZOO)
    busy = busy_cores()
    with scratch() as root:
        folder = Path(root)
        run(folder, labels[0], 10**6, argparse.Namespace(**{**vars(a), "steps": 1}))  # warm start
        jobs = [(label, seed) for seed in a.seeds for label in labels]
        with ThreadPoolExecutor(a.jobs) as threads:
            done = list(threads.map(lambda job: run(folder, *job, a), jobs))
    curves: dict[str, list[dict]] = {label: [] for label in labels}
    for (label, _), found in zip(jobs, done, strict=True):
        curves[label].append(found)
    found = {label: summary(runs) for label, runs in curves.items()}
    out = {"machine": machine(), "foreign_cores": busy, "steps": a.steps, "seeds": a.seeds,
           "summary": found, "curves": curves}  # fmt: skip
    if a.out:
        a.out.mkdir(parents=True, exist_ok=True)
        (a.out / "zoo.json").write_text(json.dumps(out, indent=1))
        (a.out / "zoo_table.md").write_text(table(found, a) + "\n")
        picture(curves, a.out / "zoo.png")
    json.dump(out, sys.stdout, indent=1)


if __name__ == "__main__":
    main()
