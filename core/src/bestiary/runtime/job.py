"""The job process of a run: ``python -m bestiary.runtime.job RUN_DIR``.

It is its own Ray driver. It reads ``RUN/config.json``, which the command line has composed and
checked, and ends with status 0, 2 (input refused), 130 (stopped) or 1 (failed).
"""

import json
import logging
import os
import signal
import sys
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bestiary.config.plan import RunPlan
from bestiary.config.secrets import hide
from bestiary.errors import EXIT_FAILURE, BestiaryError, CheckpointError
from bestiary.plugins.manager import PluginSet, load_plugins
from bestiary.protocols import RunInfo
from bestiary.runtime.checkpoint import (
    Checkpoint,
    complete_checkpoints,
    find_checkpoint,
    set_aside_later,
)
from bestiary.runtime.loop import Loop, Progress
from bestiary.runtime.restore import made_by, restore
from bestiary.runtime.session import Session, open_session
from bestiary.tracking.display import Display
from bestiary.tracking.fanout import NamedTracker, Trackers
from bestiary.tracking.jsonl import METRICS_FILE, read_metrics

EXIT_STOPPED = 130
_KEYS = ("step", "attempt")


def main(argv: list[str]) -> int:
    """Run the job of a prepared run folder; returns the exit status."""
    run_dir = Path(argv[0]).absolute()
    log_to(run_dir / "logs" / "controller.log")
    # A polite end of a job is the same whichever signal asks for it.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        plugins = load_plugins()
        plan = RunPlan.from_json((run_dir / "config.json").read_text(), plugins)
        train(plan, plugins, run_dir)
    except KeyboardInterrupt:
        _result(run_dir, "stopped", {}, "stopped by a signal")
        return EXIT_STOPPED
    except BestiaryError as error:
        return _fail(run_dir, error, str(error), error.exit_code)
    except Exception as error:
        text = f"unexpected {type(error).__name__}: {error}\n  -> see {run_dir}/logs/controller.log"
        return _fail(run_dir, error, text, EXIT_FAILURE)
    return 0


def train(plan: RunPlan, plugins: PluginSet, run_dir: Path) -> dict[str, float]:
    """Run a plan in this process; returns the last metrics."""
    manifest = _read(run_dir / "manifest.json")
    attempt = int(manifest.get("attempt", 1))
    began, skipped = _resume_point(plan, run_dir)
    display = Display(plan.run.display, plan.run.steps, max_seconds=plan.run.max_seconds)
    trackers = Trackers(_trackers(plan, plugins), report=display.message)
    progress = Progress(attempt=attempt)
    config = hide(plan.to_json())
    info = RunInfo(
        run_dir=run_dir,
        name=plan.run.name or run_dir.name,
        config=config,
        manifest=manifest,
        attempt=progress.attempt,
    )
    display.start(info)
    trackers.start(info)
    if skipped:
        names = ", ".join(path.name for path in skipped)
        display.message(f"incomplete checkpoints are left out: {names}")
        logging.getLogger("bestiary.runtime").warning("incomplete checkpoints: %s", names)
    try:
        with open_session(plan, plugins, run_dir, display.phase) as session:
            if began is not None:
                restore(session, began, progress)
                display.at(progress.step)
                progress.last = _recorded(began)
            loop = Loop(session, trackers, display, progress, made_by(session))
            if began is not None and began.path.parent == run_dir / "checkpoints":
                set_aside_later(began.path.parent, began.step, attempt)
                loop.saved = began
            return _run(loop, session, info)
    except BaseException as error:
        stopped = isinstance(error, KeyboardInterrupt)
        trackers.finish("stopped" if stopped else "failed")
        display.finish("stopped" if stopped else "failed")
        raise


def _run(loop: Loop, session: Session, info: RunInfo) -> dict[str, float]:
    schedule = session.components.build(session.plan.reference("schedule"))
    try:
        last = loop.run(schedule, info)
        if session.plan.run.checkpoint.at_end and loop.progress.step:
            loop.save()
            name = session.primary
            session.models[name].group.run("export", name, str(info.run_dir / "model"))
    except BaseException as error:
        loop.failed(error)
        loop.finish("stopped" if isinstance(error, KeyboardInterrupt) else "failed", str(error))
        raise
    loop.finish("finished")
    _result(info.run_dir, "finished", {**last, "seconds": loop.progress.seconds}, "")
    return last


def _trackers(plan: RunPlan, plugins: PluginSet) -> list[NamedTracker]:
    made = []
    for name, options in plan.trackers.items():
        component = plugins.registry.get("tracker", name)
        made.append(NamedTracker(name, component.owner, component.build(options)))
    return made


def _resume_point(plan: RunPlan, run_dir: Path) -> tuple[Checkpoint | None, list[Path]]:
    """(where the run goes on, if it does; folders of checkpoints that are not complete)."""
    if plan.run.resume is None:
        return None, []
    if plan.run.resume == "auto":
        complete, broken = complete_checkpoints(run_dir / "checkpoints")
        return (complete[-1] if complete else None), broken
    return find_checkpoint(Path(plan.run.resume).expanduser().absolute()), []


def _recorded(checkpoint: Checkpoint) -> dict[str, float]:
    """The last value of each metric that the run had recorded at a checkpoint."""
    record = checkpoint.path.parents[1] / METRICS_FILE
    found: dict[str, float] = {}
    for metrics in read_metrics(record) if record.exists() else []:
        if metrics["step"] <= checkpoint.step:
            found |= {name: x for name, x in metrics.items() if x is not None and name not in _KEYS}
    return found


def _read(path: Path) -> Mapping[str, Any]:
    try:
        loaded: Mapping[str, Any] = json.loads(path.read_text())
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
    return loaded


def log_to(path: Path) -> None:
    """Send the log of this process to a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    logging.basicConfig(
        filename=path,
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
    )
    logging.captureWarnings(True)


def _fail(run_dir: Path, error: Exception, text: str, status: int) -> int:
    logging.getLogger("bestiary.runtime").error("%s", "".join(traceback.format_exception(error)))
    sys.stderr.write(f"error: {text}\n")
    if os.environ.get("BESTIARY_TRACEBACK"):
        traceback.print_exception(error)
    _result(run_dir, "failed", {}, text)
    return status


def _result(run_dir: Path, status: str, metrics: Mapping[str, float], error: str) -> None:
    """``RUN/result.json``: how it ended, for sweeps and scripts."""
    content = {"status": status, "error": error, "ended": time.time(), "metrics": dict(metrics)}
    (run_dir / "result.json").write_text(json.dumps(content, indent=1, sort_keys=True))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
