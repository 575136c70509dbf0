"""``bestiary train -m``: every run checked before the first starts, then one after another."""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from bestiary.cli.launch import JOB_MODULE, STOPPED, Outcome, launch
from bestiary.cli.warm import supervised_plan
from bestiary.config.compose import compose_sweep
from bestiary.config.run_dir import check_free
from bestiary.errors import EXIT_FAILURE, BestiaryError

if TYPE_CHECKING:
    from bestiary.config.plan import RunPlan
    from bestiary.plugins.manager import PluginSet


_SHOWN = ("reward/mean", "eval/exact_match")


def sweep(arguments: argparse.Namespace, plugins: "PluginSet", *, module: str = JOB_MODULE) -> int:
    """Run all combinations; a run that fails does not stop the others.

    Returns:
        0 if all runs succeeded, 1 if one failed, 128 + n if signal n stopped the sweep.

    Raises:
        UserError: if any of the runs is refused; none has started then.
    """
    plans = with_own_folders(compose_sweep(arguments.overrides, arguments.config_dir, plugins))
    for plan in plans:
        check_free(plan)
        if plan.model.warm_start is not None:
            supervised_plan(plan, plan.model.warm_start, plugins)
    if arguments.cfg:
        from bestiary.cli.train import as_yaml

        sys.stdout.write("---\n".join(as_yaml(plan) for plan in plans))
        return 0
    labels = [changed(plan, arguments.overrides) for plan in plans]
    outcomes: list[Outcome | None] = []
    for number, (plan, label) in enumerate(zip(plans, labels, strict=True), 1):
        sys.stderr.write(f"[{number}/{len(plans)}] {label}\n")
        outcomes.append(_one(plan, plugins, module, arguments.traceback))
        last = outcomes[-1]
        if last is not None and last.status in STOPPED:
            sys.stderr.write(f"stopped; {len(plans) - number} runs were not started\n")
            break
    _print_table(labels, outcomes)
    stopped = [o.status for o in outcomes if o is not None and o.status in STOPPED]
    if stopped:
        return stopped[0]
    return EXIT_FAILURE if any(o is None or o.status for o in outcomes) else 0


def _one(plan: "RunPlan", plugins: "PluginSet", module: str, trace: bool) -> Outcome | None:
    try:
        return launch(plan, plugins, sys.argv, module=module, show_trace=trace)
    except BestiaryError as error:  # its folder was taken meanwhile: this run's fault alone
        sys.stderr.write(f"error: {error}\n")
        return None


def with_own_folders(plans: "Sequence[RunPlan]") -> "list[RunPlan]":
    """Runs that name the same folder get numbered ones inside it."""
    folders = [plan.run.run_dir for plan in plans]
    return [
        replace(plan, run=replace(plan.run, run_dir=str(Path(plan.run.run_dir) / str(number))))
        if plan.run.run_dir is not None and folders.count(plan.run.run_dir) > 1
        else plan
        for number, plan in enumerate(plans)
    ]


def changed(plan: "RunPlan", words: Sequence[str]) -> str:
    """The words in which a run differs from the sweep's own."""
    return " ".join(word for word in plan.overrides if word not in words) or "as given"


def _print_table(labels: Sequence[str], outcomes: "Sequence[Outcome | None]") -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=f"{len(labels)} runs", title_justify="left")
    for column in ("#", "run", "result", "seconds", *_SHOWN, "folder"):
        table.add_column(column, overflow="fold")
    for number, label in enumerate(labels, 1):
        outcome = outcomes[number - 1] if number <= len(outcomes) else None
        row = [str(number), label, _result(number, outcomes)]
        if outcome is not None:
            last = last_record(outcome.folder)
            row += [
                f"{outcome.seconds:.1f}",
                last.get("reward/mean", ""),
                last.get("eval/exact_match", ""),
            ]
            row.append(str(outcome.folder))
        table.add_row(*(Text(cell) for cell in row))
    Console(width=None if sys.stdout.isatty() else 200).print(table)


def _result(number: int, outcomes: "Sequence[Outcome | None]") -> str:
    if number > len(outcomes):
        return "not started"
    outcome = outcomes[number - 1]
    if outcome is None:
        return "refused"
    return "ok" if outcome.status == 0 else f"failed ({outcome.status})"


def last_record(folder: Path) -> dict[str, str]:
    """The last value of each metric of a run; empty when it recorded nothing."""
    found: dict[str, str] = {}
    try:
        lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    except OSError:
        return found
    for line in lines:
        try:
            record = json.loads(line)
        except ValueError:  # cut off by a crash
            continue
        found.update({k: f"{v:.4g}" for k, v in record.items() if isinstance(v, int | float)})
    return found
