"""From a checked plan to a finished run: folder, records, and a guarded process of its own."""

import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bestiary.config.manifest import manifest, write_manifest
from bestiary.config.run_dir import check_free, claim, hold, write_config

if TYPE_CHECKING:
    from bestiary.config.plan import RunPlan
    from bestiary.plugins.manager import PluginSet

JOB_MODULE: Final = "bestiary.runtime.job"
"""Run as ``python -m bestiary.runtime.job RUN_DIR``."""

TRACEBACK: Final = "BESTIARY_TRACEBACK"
"""Makes a job show where its errors were raised."""

STOPPED: Final = (129, 130, 143)
"""Exit statuses of a job that a signal to the launcher ended: hang-up, Ctrl-C, terminate."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended.

    Args:
        status: exit status of its process; 0 is success.
        folder: the run's folder.
        seconds: wall time of the process.
    """

    status: int
    folder: Path
    seconds: float


def launch(
    plan: "RunPlan",
    plugins: "PluginSet",
    argv: Sequence[str],
    *,
    module: str = JOB_MODULE,
    show_trace: bool = False,
) -> Outcome:
    """Claim the run's folder, write its records and run its job to the end.

    Args:
        plan: the checked run.
        plugins: of this process; the job loads the same.
        argv: the command line, for the manifest.
        module: what the job's process runs, with the folder as its argument.
        show_trace: whether the job shows where its errors were raised.

    Raises:
        UserError: if the folder cannot be claimed; nothing has started then.
    """
    from bestiary.cli.warm import with_warm_start
    from bestiary.distributed.guard import run_guarded

    check_free(plan)  # before the warm start, which takes time
    plan = with_warm_start(plan, plugins)
    taken = claim(plan)
    with hold(taken.folder):
        write_config(taken.folder, plan, taken.attempt)
        write_manifest(taken.folder, manifest(plan, plugins, taken, argv), taken.attempt)
        for change in taken.changed:
            sys.stderr.write(f"changed since the last attempt: {change}\n")
        began = time.monotonic()
        env = {**os.environ, **plugins.environment()}
        if show_trace:
            env[TRACEBACK] = "1"
        status = run_guarded([sys.executable, "-m", module, str(taken.folder)], env)
    return Outcome(status, taken.folder, time.monotonic() - began)
