"""Time and generated tokens to +0.25 held-out exact match, beside TRL, from the same warm start.

Two-digit addition with the tiny model. Both train GRPO on the same problems with the same reward
(1 for the exact answer, else 0), prompts and samples a step, from the same weights; evaluations
(sampled at temperature 1, mean of 4, greedy beside it) are left out of the time. Prints the curve
of each seed, the time at which it first has +0.25, and the ratio of the medians.

    python benchmarks/learning.py                  seeds 0 to 4, both
    python benchmarks/learning.py --only bestiary  our five curves
"""

import argparse
import json
from pathlib import Path

from common import bestiary, busy_cores, machine, median, peer, peer_python, say, scratch

GAIN = 0.25
PROBLEMS = 256


def prepare(folder: Path) -> tuple[Path, Path, Path]:
    """The warm weights, and both splits as files."""
    from bestiary.cli.demo import SETTINGS
    from bestiary.cli.warm import with_warm_start
    from bestiary.config.compose import compose_run
    from bestiary.plugins.manager import load_plugins

    plugins = load_plugins()
    plan = with_warm_start(compose_run(list(SETTINGS), None, plugins), plugins)
    task = plan.component("task", plugins).build(plan.options["task"])
    files = []
    for split in ("train", "eval"):
        path = folder / f"{split}.jsonl"
        rows = task.problems(split)
        rows = rows[:PROBLEMS] if split == "eval" else rows
        with path.open("w") as file:
            for p in rows:
                row = {"uid": p.uid, "prompt": p.prompt, "answer": p.answer}
                file.write(json.dumps(row) + "\n")
        files.append(path)
    return Path(plan.model.path), files[0], files[1]


def ours(run_dir: Path, seed: int, a: argparse.Namespace) -> list[dict]:
    from bestiary.cli.demo import SETTINGS

    words = [w for w in SETTINGS if not w.startswith(("steps=", "algorithm.kl_coef=", "eval."))]
    records = bestiary(
        run_dir, *words, f"seed={seed}", f"steps={a.steps}", f"max_seconds={a.seconds}",
        f"eval.problems={PROBLEMS}", "eval.every=5", "algorithm.kl_coef=0",
        "checkpoint.at_end=false", *a.override,
    )  # fmt: skip
    points, seconds = [], 0.0
    for r in records:
        seconds += r.get("time/step_s", 0.0)
        if "eval/exact_match" in r:
            points.append({
                "step": r["step"], "seconds": round(seconds, 2),
                "tokens": int(r.get("data/tokens_generated", 0)),
                "sampled": r["eval/exact_match"], "greedy": r["eval/greedy"],
            })  # fmt: skip
    return points


def theirs(python: str, files: tuple[Path, Path, Path], seed: int, a: argparse.Namespace) -> list:
    model, train, held_out = files
    out = peer(
        python, "--model", model, "--data", train, "--held-out", held_out, "--eval-every", 5,
        "--prompts", 32, "--group", 16, "--new-tokens", 4, "--reward", "exact", "--lr", 1e-4,
        "--threads", 2, "--steps", a.trl_steps, "--warmup", 0, "--seed", seed, "--micro", a.micro,
    )  # fmt: skip
    return out["curve"]


def reached(points: list[dict]) -> dict | None:
    """The first point with the gain over the start, if there is one."""
    start = points[0]["sampled"]
    return next((p for p in points if p["sampled"] >= start + GAIN), None)


def summary(curves: list[list[dict]]) -> dict:
    hits = [reached(points) for points in curves]
    out = {
        "start": [round(c[0]["sampled"], 3) for c in curves],
        "end": [round(c[-1]["sampled"], 3) for c in curves],
        "end_greedy": [round(c[-1]["greedy"], 3) for c in curves],
        "seconds_to_gain": [h and h["seconds"] for h in hits],
        "tokens_to_gain": [h and h["tokens"] for h in hits],
    }
    if all(hits):
        out["median_seconds"] = median([h["seconds"] for h in hits])
        out["median_tokens"] = median([h["tokens"] for h in hits])
    return out


def main() -> None:
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    p.add_argument("--only", choices=["bestiary", "trl"], default="")
    p.add_argument("--steps", type=int, default=400)
    p.add_argument("--seconds", type=float, default=60.0, help="our runs end after this time")
    p.add_argument("--trl-steps", type=int, default=150)
    p.add_argument("--micro", type=int, default=0, help="TRL's micro-batch; 0 is the whole batch")
    p.add_argument("--trl-python", default="", help="an existing environment with TRL")
    p.add_argument("override", nargs="*", help="further settings of our run, key=value")
    a = p.parse_args()
    python = peer_python(a.trl_python) if a.only != "bestiary" else ""
    curves: dict[str, list] = {"bestiary": [], "trl": []}
    foreign = []
    with scratch() as folder:
        files = prepare(Path(folder))
        for seed in a.seeds:
            for name in ("bestiary", "trl"):
                if a.only and a.only != name:
                    continue
                foreign.append(busy_cores())
                if name == "bestiary":
                    points = ours(Path(folder) / f"run-{seed}", seed, a)
                else:
                    points = theirs(python, files, seed, a)
                curves[name].append(points)
                hit = reached(points)
                say(f"{name} seed {seed}: {points[0]['sampled']:.3f} -> {points[-1]['sampled']:.3f}"
                    f", +{GAIN} after {hit['seconds'] if hit else 'never'} s")  # fmt: skip
    found = {name: summary(c) for name, c in curves.items() if c}
    settings = {k: v for k, v in vars(a).items() if k != "trl_python"}
    out = {"machine": machine(), "settings": settings, "foreign_cores": foreign, **found}
    if all("median_seconds" in found.get(n, {}) for n in ("bestiary", "trl")):
        ratio = found["bestiary"]["median_seconds"] / found["trl"]["median_seconds"]
        out["seconds_over_trl"] = round(ratio, 2)
    print(json.dumps({**out, "curves": curves}, indent=1))


if __name__ == "__main__":
    main()
