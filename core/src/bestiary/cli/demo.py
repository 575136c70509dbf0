"""``bestiary demo``: a language model learns two-digit addition by reinforcement, in a minute."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from bestiary.plugins.manager import load_plugins

SETTINGS = (
    "algorithm=grpo",
    "task=addition",
    "model=tiny",
    "algorithm.prompts=32",
    "algorithm.samples=16",
    "algorithm.minibatches=2",
    "algorithm.old=rollout",
    "algorithm.kl_coef=0.001",
    "train_engine.lr=1e-4",
    "train_engine.warmup_steps=10",
    "placement.workers=2",
    "steps=150",
    "eval.every=10",
    "eval.problems=256",
    "eval.samples=4",
)
"""The demo's run; words after ``bestiary demo`` override them."""


def demo(arguments: argparse.Namespace) -> int:
    """Train, then show what was learned; returns the exit status."""
    from bestiary.cli.launch import launch
    from bestiary.config.compose import compose_run

    plugins = load_plugins(block=arguments.block_plugin)
    plan = compose_run([*SETTINGS, *arguments.overrides], None, plugins)
    outcome = launch(plan, plugins, sys.argv, show_trace=arguments.traceback)
    if outcome.status:
        return outcome.status
    show(outcome.folder)
    return 0


def show(run_dir: Path) -> None:
    """Print the table of before and after, some answers, the curve's path and what to try next."""
    from rich.console import Console

    from bestiary.tracking.jsonl import read_metrics
    from bestiary.tracking.plots import learning_curve
    from bestiary.tracking.tables import answers_table, before_after_table

    console = Console()
    records = read_metrics(run_dir / "metrics.jsonl")
    evaluated = [record for record in records if "eval/exact_match" in record]
    first, last = evaluated[0], {**records[-1], **evaluated[-1]}
    console.print(before_after_table(first, last, title="Held-out problems").rich())
    rows = before_after_answers(run_dir, int(first["step"]), int(evaluated[-1]["step"]))
    console.print(answers_table(rows, title="Greedy answers to held-out problems").rich())
    curve = learning_curve(records, run_dir / "learning_curve.png", title="GRPO on addition")
    console.print(f"learning curve  {curve}", soft_wrap=True)
    console.print(f"run folder      {run_dir}", soft_wrap=True)
    console.print(next_commands(run_dir), soft_wrap=True)


def before_after_answers(run_dir: Path, first: int, last: int) -> list[dict[str, Any]]:
    """Greedy answers of the first and the last evaluation to the same problems."""
    before, after = (
        {row["uid"]: row for row in _answers(run_dir, step) if row["tag"] == "greedy"}
        for step in (first, last)
    )
    return [
        {
            "prompt": old["prompt"],
            "expected": old["answer"],
            "before": old["response"],
            "after": after[uid]["response"],
            "before_ok": old["reward"] >= 1,
            "after_ok": after[uid]["reward"] >= 1,
        }
        for uid, old in list(before.items())[:8]
        if uid in after
    ]


def _answers(run_dir: Path, step: int) -> list[dict[str, Any]]:
    content = json.loads((run_dir / "samples" / f"eval_{step}.json").read_text())
    answers: list[dict[str, Any]] = content["answers"]
    return answers


def next_commands(run_dir: Path) -> str:
    """Three commands to go on with."""
    return "\n".join(
        (
            "",
            "try next, after `. .venv/bin/activate`:",
            f"  bestiary eval {run_dir} eval.samples=16",
            "  bestiary train -m algorithm=grpo task=addition model=tiny "
            "advantage.scale=std,none seed=0,1",
            "  bestiary train --info algorithm=grpo",
        )
    )
