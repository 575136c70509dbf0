"""``bestiary eval``: held-out accuracy of a run's checkpoint, in a job of its own."""

import argparse
import itertools
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bestiary.config.manifest import gone_named
from bestiary.config.resume import CONFIG
from bestiary.errors import CheckpointError, ConfigError
from bestiary.plugins.manager import load_plugins

if TYPE_CHECKING:
    from bestiary.config.plan import RunPlan
    from bestiary.plugins.manager import PluginSet

EVAL_MODULE = "bestiary.runtime.eval_job"
_SETTABLE = ("eval.", "placement.", "rollout_engine.", "cluster.", "seed", "display", "timeout_s")


def evaluate(arguments: argparse.Namespace) -> int:
    """Evaluate a run or checkpoint; returns the exit status.

    Raises:
        UserError: before any process has started.
    """
    from bestiary.distributed.guard import run_guarded

    plugins = load_plugins(block=arguments.block_plugin)
    source = Path(arguments.source).expanduser().absolute()
    checkpoint = _checkpoint(source)
    run_dir = _run_of(source)
    words = [*(["display=none"] if arguments.json else []), *arguments.overrides]
    plan = _plan(run_dir, words, plugins)
    folder = _folder(run_dir)
    (folder / "config.json").write_text(json.dumps(plan.to_json(), indent=1))
    (folder / "target.json").write_text(json.dumps({"checkpoint": str(checkpoint.resolve())}))
    status = run_guarded(
        [sys.executable, "-m", EVAL_MODULE, str(folder)],
        {**os.environ, **plugins.environment()},
    )
    if status:
        return status
    _show(checkpoint, json.loads((folder / "eval.json").read_text()), as_json=arguments.json)
    return 0


def _checkpoint(source: Path) -> Path:
    from bestiary.runtime.checkpoint import find_checkpoint

    if not source.is_dir():
        raise CheckpointError(
            f"{source} is not a folder", hint="give a run folder or its checkpoints/step_N"
        )
    return find_checkpoint(source).path


def _run_of(source: Path) -> Path:
    """The run that a checkpoint belongs to, or the folder itself."""
    for folder in (source, *source.parents[:3]):
        if (folder / CONFIG).is_file():
            return folder
    return source


def _plan(run_dir: Path, words: Sequence[str], plugins: "PluginSet") -> "RunPlan":
    """The run's own configuration with what the command line changes of it."""
    from hydra.core.override_parser.overrides_parser import OverridesParser

    from bestiary.config.plan import RunPlan

    try:
        data: dict[str, Any] = json.loads((run_dir / CONFIG).read_text())
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{run_dir} has no readable config.json: {error}", hint="give a run folder"
        ) from error
    for override in OverridesParser.create().parse_overrides(list(words)) if words else ():
        key = override.key_or_group
        if not key.startswith(_SETTABLE) or override.is_sweep_override():
            raise ConfigError(
                f"bestiary eval cannot set {key!r}",
                hint=f"it can set {', '.join(_SETTABLE)}; the rest is the run's",
            )
        _set(data, key, override.value())
    with gone_named(run_dir, plugins):
        return RunPlan.from_json(data, plugins)


def _set(data: dict[str, Any], key: str, value: object) -> None:
    head, _, rest = key.partition(".")
    if head in data["options"] and rest:
        data["options"][head][rest] = value
    elif rest:
        data["run"][head][rest] = value
    else:
        data["run"][head] = value


def _folder(run_dir: Path) -> Path:
    """``RUN/eval/N``, made exclusively."""
    (run_dir / "eval").mkdir(exist_ok=True)
    for number in itertools.count(1):
        try:
            (folder := run_dir / "eval" / str(number)).mkdir()
        except FileExistsError:
            continue
        (folder / "logs").mkdir()
        return folder.absolute()
    raise AssertionError("count() has no end")


def _show(checkpoint: Path, found: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        content = {"checkpoint": str(checkpoint), **found}
        sys.stdout.write(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
        return
    from rich.console import Console
    from rich.table import Table

    from bestiary.tracking.names import describe

    table = Table("metric", "value", title=f"held-out problems, {checkpoint}", title_justify="left")
    for name, value in found["metrics"].items():
        doc = describe(name)
        table.add_row(f"{name} [dim]{doc.help if doc else ''}[/dim]", f"{value:.4g}")
    answers = Table("prompt", "expected", "kind", "response", "reward", title="some answers")
    for row in found["answers"][:10]:
        answers.add_row(
            str(row["prompt"]),
            str(row["answer"]),
            str(row["tag"]),
            str(row["response"]),
            f"{row['reward']:g}",
        )
    console = Console()
    console.print(table)
    console.print(answers)
