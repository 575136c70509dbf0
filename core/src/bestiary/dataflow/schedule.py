"""The face of a schedule, and the synchronous one."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from bestiary.batch import Batch
from bestiary.dataflow.options import SyncOptions
from bestiary.dataflow.refill import collect_groups
from bestiary.protocols import Algorithm, Sampler


@dataclass(frozen=True, slots=True)
class Done:
    """One finished step: what was trained on, what it reported, and how long it took."""

    step: int
    batch: Batch
    metrics: dict[str, float]
    seconds: float


class Schedule(Protocol):
    """Decides when ``collect`` and ``learn`` run; built as ``target(options)``."""

    def run(
        self, algorithm: Algorithm, sampler: Sampler, *, prompts: int, start: int, stop: int
    ) -> Iterator[Done]:
        """Run steps ``start + 1`` to ``stop``, yielding after each."""
        ...


class Sync:
    """Collect and learn in turn.

    Args:
        options: has no fields yet; it names the schedule.
    """

    def __init__(self, options: SyncOptions) -> None:
        self.options = options

    def run(
        self, algorithm: Algorithm, sampler: Sampler, *, prompts: int, start: int, stop: int
    ) -> Iterator[Done]:
        """Run steps ``start + 1`` to ``stop``, yielding after each."""
        for step in range(start + 1, stop + 1):
            began = time.perf_counter()
            algorithm.step = step
            batch = collect_groups(algorithm, sampler, prompts)
            algorithm.learned = None
            metrics = algorithm.learn(batch)
            sampler.observe(batch if algorithm.learned is None else algorithm.learned)
            yield Done(step, batch, metrics, time.perf_counter() - began)
