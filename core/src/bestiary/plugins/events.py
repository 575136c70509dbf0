"""What hooks are told: one frozen event for each observation, and the request of a decision.

Light values only, so that an observer can keep, compare or send them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from pathlib import Path

    from bestiary.protocols import Role, RunInfo


@dataclass(frozen=True, slots=True)
class PlacementRequest:
    """A run that asks where its models go.

    Args:
        roles: the roles of the algorithm under its options; those with the same ``model`` (or,
            where that is empty, the same name) are views of one model.
        devices: what the run may use, as in ``("cuda:0", "cuda:1")`` or ``("cpu:0",)``.
    """

    roles: "tuple[Role, ...]"
    devices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RunStart:
    """A run has its folder, configuration and workers, and is about to take its first step."""

    run: "RunInfo"


@dataclass(frozen=True, slots=True)
class Rollout:
    """Responses of one step were collected and scored.

    Args:
        step: counted from 1.
        samples: responses in the batch.
        tokens: response tokens in the batch.
        seconds: wall time of collecting.
        version: policy version that drew them, the oldest of the batch.
    """

    step: int
    samples: int
    tokens: int
    seconds: float
    version: int


@dataclass(frozen=True, slots=True)
class Step:
    """A step was trained and recorded.

    Args:
        step: counted from 1.
        version: optimizer steps of the policy so far.
        metrics: the step's record, numbers by name.
        attempt: counts resumes; a later attempt's record of a step replaces the earlier one.
    """

    step: int
    version: int
    metrics: Mapping[str, float]
    attempt: int = 1


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint is complete on disk."""

    step: int
    path: "Path"


@dataclass(frozen=True, slots=True)
class WorkerFailed:
    """A worker process died, hung or raised.

    Args:
        step: the step that was running.
        group: name of its worker group.
        rank: its rank in the group.
        host: where it ran.
        cause: the first failure, in words.
    """

    step: int
    group: str
    rank: int
    host: str
    cause: str


@dataclass(frozen=True, slots=True)
class RunEnd:
    """A run is over; told exactly once to whoever was told of its start.

    Args:
        status: how it ended.
        step: the last complete step.
        error: why, when it failed.
    """

    status: Literal["finished", "failed", "stopped"]
    step: int
    error: str = ""


Event = RunStart | Rollout | Step | Checkpoint | WorkerFailed | RunEnd

OBSERVERS: Mapping[type[Event], str] = {
    RunStart: "bestiary_on_run_start",
    Rollout: "bestiary_on_rollout",
    Step: "bestiary_on_step",
    Checkpoint: "bestiary_on_checkpoint",
    WorkerFailed: "bestiary_on_worker_failure",
    RunEnd: "bestiary_on_run_end",
}
"""The hook that is told of each event."""
