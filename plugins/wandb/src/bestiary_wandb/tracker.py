"""The tracker ``wandb``: one W&B run for a job, never a prompt, no process left behind."""

import json
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from bestiary.protocols import RunInfo
from bestiary_wandb.access import resolve_mode, without_secrets
from bestiary_wandb.options import WandbOptions

ID_FILE = "run_id.json"


class WandbTracker:
    """Writes a run to W&B.

    A row of the history is sent when the next step begins, so that the numbers and the samples of
    a step are one row in whatever order they come.

    Args:
        options: where the run goes.
    """

    def __init__(self, options: WandbOptions) -> None:
        self.options = options
        self._run: Any = None  # wandb.Run, whose module is imported in start
        self._row: dict[str, Any] = {}
        self._attempt = 1
        self._opened = False

    def start(self, run: RunInfo) -> None:
        """Open the W&B run, or go on with the one that an earlier attempt opened."""
        with no_fault_reports():
            self._open(run)
        self._run.define_metric("step", hidden=True)
        self._run.define_metric("*", step_metric="step")

    def _open(self, run: RunInfo) -> None:
        import wandb

        options = self.options
        self._opened = True  # a failure from here on may leave wandb's process to be ended
        self._attempt = run.attempt
        self._run = wandb.init(
            project=options.project,
            entity=options.entity or None,
            group=options.group or None,
            tags=options.tags or None,
            name=run.name,
            id=saved_id(run.run_dir) or fresh_id(run.run_dir, secrets.token_hex(6)),
            resume="allow",
            dir=run.run_dir,
            mode=resolve_mode(options.mode, os.environ, Path.home()),
            reinit="create_new",
            config=wandb_config(run),
            settings=self._settings(wandb),
        )

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Add numbers to the step's row."""
        self._begin(step)
        self._row.update(metrics)

    def samples(self, step: int, rows: Iterable[Mapping[str, Any]]) -> None:
        """Add a table to the step's row."""
        import wandb

        table = [dict(row) for row in rows]
        if table:
            columns: list[str | int] = list(dict.fromkeys(name for row in table for name in row))
            data = [[_cell(row.get(str(name))) for name in columns] for row in table]
            self._begin(step)
            self._row["samples"] = wandb.Table(columns=columns, data=data)

    def finish(self, status: Literal["finished", "failed", "stopped"]) -> None:
        """Send the last row, close the run and end wandb's own process."""
        if not self._opened:
            return
        import wandb

        run, self._run = self._run, None
        try:
            if run is not None:
                if self._row:
                    run.log(self._row)
                run.summary["status"] = status
                run.finish(exit_code=0 if status == "finished" else 1)
        finally:
            self._row = {}
            if wandb.run is None:  # else another part of this process still uses wandb
                wandb.teardown()

    def _begin(self, step: int) -> None:
        if self._row and self._row["step"] != step:
            self._run.log(self._row)
            self._row = {}
        if not self._row:
            self._row = {"step": step, "attempt": self._attempt}

    def _settings(self, wandb: Any) -> Any:  # noqa: ANN401 - a module imported late
        return wandb.Settings(
            console="off",  # the display owns the terminal
            silent=True,
            init_timeout=30.0,
            finish_timeout=self.options.upload_wait_s,
            disable_git=True,  # the manifest has the commit; a remote's address may hold a key
            disable_code=True,
            save_code=False,
            disable_job_creation=True,
            x_disable_meta=True,  # host, user and the command line
            x_disable_stats=not self.options.system_stats,
            x_disable_machine_info=not self.options.system_stats,
            x_save_requirements=False,  # the manifest has the versions
        )


@contextmanager
def no_fault_reports() -> Iterator[None]:
    """Keep wandb, while it starts, from reporting its own faults to its maker, unless wished.

    It reads the environment at its start, reports offline runs too and keeps threads for it.
    """
    if "WANDB_ERROR_REPORTING" in os.environ:
        yield
        return
    os.environ["WANDB_ERROR_REPORTING"] = "false"
    try:
        yield
    finally:
        os.environ.pop("WANDB_ERROR_REPORTING", None)


def saved_id(run_dir: Path) -> str:
    """The id that an earlier attempt saved, or an empty text."""
    try:
        saved = json.loads((run_dir / "wandb" / ID_FILE).read_text(encoding="utf-8"))
        return str(saved["id"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def fresh_id(run_dir: Path, new: str) -> str:
    """Save ``new`` for later attempts and return it."""
    path = run_dir / "wandb" / ID_FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps({"id": new}) + "\n", encoding="utf-8")
    temporary.replace(path)
    return new


def wandb_config(run: RunInfo) -> dict[str, Any]:
    """The run's configuration with the plugin fingerprint, without secrets."""
    config = dict(run.config) | {"run_dir": str(run.run_dir), "attempt": run.attempt}
    for key in ("fingerprint", "plugins", "git_commit"):
        if key in run.manifest:
            config[key] = run.manifest[key]
    cleaned: dict[str, Any] = without_secrets(config)
    return cleaned


def _cell(value: Any) -> Any:  # noqa: ANN401 - any JSON value
    """Tables want one type a column; whatever is no number is shown as text."""
    if value is None or isinstance(value, int | float):
        return value
    return value if isinstance(value, str) else json.dumps(value, default=str)
