"""Every hook of the project, with its exact arguments.

There are three kinds. *Registration* hooks run once when plugins are loaded. *Decision* hooks are
asked until one answers. *Observation* hooks are told of one frozen event and return nothing.

An implementation may take fewer arguments than its specification. Adding an argument raises the
minor number of ``API_VERSION``; an argument is removed only after a minor version that warns, and
the removal raises the major number. A plugin may state what it was written for with a module
attribute ``BESTIARY_API = "1.0"``.
"""

from typing import TYPE_CHECKING

from bestiary.plugins.markers import hookspec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bestiary.plugins.events import (
        Checkpoint,
        PlacementRequest,
        Rollout,
        RunEnd,
        RunStart,
        Step,
        WorkerFailed,
    )
    from bestiary.plugins.registry import Registry

API_VERSION = "1.0"
"""Version of these specifications, major.minor."""

# --------------------------------------------------------------------------- registration


@hookspec
def bestiary_register(registry: "Registry") -> None:
    """Register components by name.

    Called once for each plugin when it is loaded. Targets and options are strings, as in
    ``"bestiary_mine.algorithm:Mine"``, and are imported when the component is chosen. What a
    plugin registered before it raised is dropped.

    Since: 1.0

    Args:
        registry: one method for each kind of component.
    """


@hookspec
def bestiary_config_packages() -> list[str]:
    """Name packages that hold configuration files of the plugin.

    Called once for each plugin when it is loaded. Each package joins Hydra's search path as
    ``pkg://NAME``.

    Since: 1.0

    Returns:
        Import names of packages, as in ``["bestiary_mine.conf"]``.
    """
    raise NotImplementedError  # a specification is never called


# --------------------------------------------------------------------------- decision


@hookspec(firstresult=True)
def bestiary_plan_placement(request: "PlacementRequest") -> "Mapping[str, Sequence[str]] | None":
    """Decide which devices each model of a run gets.

    Called once before workers start. The plugin loaded last is asked first, and the first answer
    counts.

    Since: 1.0

    Args:
        request: the roles of the algorithm and the devices that it may use.

    Returns:
        The devices of each model by name; models with equal devices share processes. None leaves
        the decision to the next plugin, and in the end to the chosen placement.
    """


# --------------------------------------------------------------------------- observation


@hookspec
def bestiary_on_run_start(event: "RunStart") -> None:
    """See that a run is about to take its first step.

    Called in the driver, once for each attempt.

    Since: 1.0

    Args:
        event: folder, name, configuration, manifest and attempt of the run.
    """


@hookspec
def bestiary_on_rollout(event: "Rollout") -> None:
    """See that the responses of a step were collected and scored.

    Since: 1.0

    Args:
        event: how many samples and tokens, how long it took, and which policy version drew them.
    """


@hookspec
def bestiary_on_step(event: "Step") -> None:
    """See that a step was trained and recorded.

    Since: 1.0

    Args:
        event: the step with its metrics.
    """


@hookspec
def bestiary_on_checkpoint(event: "Checkpoint") -> None:
    """See that a checkpoint is complete on disk.

    Since: 1.0

    Args:
        event: its step and folder.
    """


@hookspec
def bestiary_on_worker_failure(event: "WorkerFailed") -> None:
    """See that a worker process died, hung or raised, before anything is recovered.

    Since: 1.0

    Args:
        event: worker group, rank, host and cause.
    """


@hookspec
def bestiary_on_run_end(event: "RunEnd") -> None:
    """See that a run is over, also after a failure or an interrupt.

    Since: 1.0

    Args:
        event: how it ended, after which step, and why.
    """
