"""One entry for all trackers of a run, used by the controller process alone.

The record (:class:`~bestiary.tracking.jsonl.JsonlTracker`) is always the first and must succeed.
Any other tracker may fail: it is reported once with its owner, left out from then on, and the run
goes on. Workers never hold a tracker; their numbers come to the controller, which tags them by
rank (:func:`tag_ranks`) and writes one record a step.
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from bestiary.errors import BestiaryError, Owner
from bestiary.protocols import RunInfo, Tracker
from bestiary.tracking.jsonl import JsonlTracker

if TYPE_CHECKING:
    from pathlib import Path

Status = Literal["finished", "failed", "stopped"]


@dataclass(frozen=True, slots=True)
class NamedTracker:
    """A tracker with the name it was chosen by and who provides it."""

    name: str
    owner: Owner | None
    tracker: Tracker


class Trackers:
    """Passes everything to the record and to each tracker that still works.

    Args:
        trackers: the chosen trackers; the record is not among them, it is always on.
        report: called with one line when a tracker fails.
    """

    def __init__(
        self,
        trackers: Iterable[NamedTracker] = (),
        *,
        report: Callable[[str], object] = lambda text: None,
    ) -> None:
        self._record = JsonlTracker()
        self._trackers = list(trackers)
        self._report = report
        self._active: list[NamedTracker] = []
        self._started: list[NamedTracker] = []
        self._run_dir: Path | None = None
        self._pid = os.getpid()

    @property
    def active(self) -> tuple[str, ...]:
        """Names of the trackers that started and have not failed."""
        return tuple(named.name for named in self._active)

    def start(self, run: RunInfo) -> None:
        """Open the record, then each tracker."""
        self._own("start")
        self._record.start(run)
        self._run_dir = run.run_dir
        self._active = list(self._trackers)
        # A tracker whose start failed half-way may hold a process too, so all of them get finish.
        self._started = list(self._trackers)
        self._each("start", lambda tracker: tracker.start(run))

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write one step: once, and whole."""
        self._own("log")
        self._record.log(step, metrics)
        self._each("log", lambda tracker: tracker.log(step, metrics))

    def samples(self, step: int, rows: Iterable[Mapping[str, Any]]) -> None:
        """Write a few prompts with responses and rewards."""
        self._own("samples")
        table = [dict(row) for row in rows]
        self._record.samples(step, table)
        self._each("samples", lambda tracker: tracker.samples(step, table))

    def sync(self) -> None:
        """Bring the record to the disk, as before the marker of a checkpoint."""
        self._own("sync")
        self._record.sync()

    def finish(self, status: Status) -> None:
        """Close all; a second call does nothing."""
        self._own("finish")
        started, self._started = self._started, []
        try:
            self._record.finish(status)
        finally:
            for named in started:
                quiet = named not in self._active  # its failure has been reported already
                try:
                    named.tracker.finish(status)
                except Exception as error:
                    if not quiet:
                        self._fail(named, "finish", error)
            self._active = []

    def _each(self, doing: str, call: Callable[[Tracker], None]) -> None:
        for named in tuple(self._active):
            try:
                call(named.tracker)
            except Exception as error:
                self._fail(named, doing, error)

    def _fail(self, named: NamedTracker, doing: str, error: Exception) -> None:
        self._active.remove(named)
        known = isinstance(error, BestiaryError)
        reason = " ".join((str(error) if known else f"{type(error).__name__}: {error}").split())
        owner = f" [owner: {named.owner}]" if named.owner is not None else ""
        self._report(
            f"tracker {named.name!r} failed in {doing} and is left out from here on: "
            f"{reason}{owner}; the run goes on and its record is in {self._run_dir}"
        )

    def _own(self, doing: str) -> None:
        if os.getpid() != self._pid:
            raise BestiaryError(
                f"trackers.{doing} in process {os.getpid()}: they belong to the controller "
                f"(process {self._pid})",
                hint="return metrics from the worker's method; the controller tags them by rank",
            )

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "trackers belong to the controller process and cannot be sent to a worker; return "
            "metrics from the worker's method instead"
        )


def tag_ranks(per_rank: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Metrics of workers as keys of one record: ``rank0/time/update_s``, ``rank1/…``.

    Args:
        per_rank: the metrics that each rank reported, in the order of ranks.
    """
    return {
        f"rank{rank}/{name}": value
        for rank, metrics in enumerate(per_rank)
        for name, value in metrics.items()
    }
