"""``bestiary train``: compose and check everything first, then start."""

import argparse
import sys
from typing import TYPE_CHECKING, Any

from bestiary.plugins.manager import load_plugins

if TYPE_CHECKING:
    from pathlib import Path

    from bestiary.config.plan import RunPlan
    from bestiary.plugins.manager import PluginSet


def train(arguments: argparse.Namespace) -> int:
    """Run what the command line says; returns the exit status.

    Raises:
        UserError: before any process has started.
    """
    plugins = load_plugins(block=arguments.block_plugin)
    if arguments.info is not None:
        return _info(arguments, plugins)
    if arguments.multirun:
        from bestiary.cli.sweep import sweep

        return sweep(arguments, plugins)
    from bestiary.config.compose import compose_run

    plan = compose_run(arguments.overrides, arguments.config_dir, plugins)
    if arguments.cfg:
        sys.stdout.write(as_yaml(plan))
        return 0
    from bestiary.cli.launch import STOPPED, launch

    outcome = launch(plan, plugins, sys.argv, show_trace=arguments.traceback)
    if outcome.status in STOPPED:
        sys.stderr.write(f"stopped: {outcome.folder}\n")
    elif outcome.status:
        sys.stderr.write(f"the run failed with status {outcome.status}: {outcome.folder}\n")
    else:
        _draw(outcome.folder)
    return outcome.status


def _draw(run_dir: "Path") -> None:
    """Leave a picture of how the run learned beside its record."""
    from bestiary.tracking.jsonl import METRICS_FILE, read_metrics
    from bestiary.tracking.plots import learning_curve

    record = run_dir / METRICS_FILE
    records = read_metrics(record) if record.exists() else []
    if len(records) > 1:
        curve = learning_curve(records, run_dir / "learning_curve.png", title=run_dir.name)
        sys.stdout.write(f"learning curve: {curve}\n")


def _info(arguments: argparse.Namespace, plugins: "PluginSet") -> int:
    from pathlib import Path

    from bestiary.config.catalog import Catalog
    from bestiary.config.docs import info

    folder = None if arguments.config_dir is None else Path(arguments.config_dir)
    sys.stdout.write(info(Catalog(plugins, folder), arguments.info) + "\n")
    return 0


def as_yaml(plan: "RunPlan") -> str:
    """The configuration of a plan, as a file for ``+experiment`` has it."""
    from omegaconf import OmegaConf

    from bestiary.config.plain import escaped
    from bestiary.config.schema import GROUPS, MANY

    data = plan.to_json()
    choices: list[dict[str, Any]] = [
        {f"override /{group}": name}
        for group, name in plan.choices.items()
        if plan.chosen(group) or group == "model"
    ]
    choices.append({f"override /{MANY}": list(plan.trackers)})
    values: dict[str, Any] = {
        "defaults": choices,
        **data["run"],
        **{group: data["options"][group] for group in GROUPS if data["options"][group]},
    }
    if plan.trackers:
        values[MANY] = data["trackers"]
    return "# @package _global_\n" + OmegaConf.to_yaml(OmegaConf.create(escaped(values)))
