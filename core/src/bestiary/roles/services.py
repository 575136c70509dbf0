"""What every role shares: the resolver of components, the run's seed, and the record of calls."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from bestiary.protocols import ComponentRef, Stat

Report = Mapping[str, Any]
"""What a worker says about one call: ``seconds``, ``metrics`` (name → Stat), ``tokens``."""


class Reporting(Protocol):
    """A handle whose call has been, or will be, answered with a report."""

    def report(self) -> Report:
        """Wait for the call and return its report."""
        ...


@dataclass(slots=True)
class Ledger:
    """Collects the reports of calls until the end of a step.

    ``phases`` are seconds of the slowest rank, summed over the calls of a phase.
    """

    calls: list[tuple[str, list[Reporting]]] = field(default_factory=list)
    extra: dict[str, Stat] = field(default_factory=dict)

    def note(self, phase: str, handles: Iterable[Reporting]) -> None:
        """Remember a fan-out that belongs to ``phase``."""
        self.calls.append((phase, list(handles)))

    def add(self, name: str, stat: Stat) -> None:
        """Add a statistic that the controller itself computed."""
        self.extra[name] = self.extra[name] + stat if name in self.extra else stat

    def drain(self) -> dict[str, float]:
        """Wait for all calls, reduce what they reported to numbers, and start anew."""
        stats, self.extra = self.extra, {}
        calls, self.calls = self.calls, []
        for phase, handles in calls:
            reports = [handle.report() for handle in handles]
            for name in ("seconds", "sync_seconds"):
                slowest = max((float(r.get(name, 0.0)) for r in reports), default=0.0)
                key = f"time/{phase}_s" if name == "seconds" else "time/sync_s"
                if name == "seconds" or slowest > 0.0:
                    _merge(stats, key, Stat(slowest, how="sum"))
            for report in reports:
                for name, stat in report.get("metrics", {}).items():
                    _merge(stats, name, stat)
        return {name: stat.value for name, stat in sorted(stats.items())}


def _merge(stats: dict[str, Stat], name: str, stat: Stat) -> None:
    stats[name] = stats[name] + stat if name in stats else stat


@dataclass(slots=True)
class Services:
    """Shared by the roles of one run.

    Args:
        seed: the run's seed.
        resolve: a component reference → its validated options object.
        ledger: where calls are noted.
    """

    seed: int
    resolve: Callable[[ComponentRef], Any]
    ledger: Ledger = field(default_factory=Ledger)


def spread(sizes: np.ndarray, world: int) -> list[np.ndarray]:
    """Cut items into ``world`` contiguous runs of about equal total size.

    Args:
        sizes: [n] cost of each item.
        world: number of runs; some are empty when there are fewer items.

    Returns:
        The item numbers of each run; every item once, in order.
    """
    total = np.concatenate([[0.0], np.cumsum(sizes, dtype=np.float64)])
    middle = (total[:-1] + total[1:]) / 2
    run = np.minimum((middle / max(total[-1], 1e-12) * world).astype(np.int64), world - 1)
    return [np.flatnonzero(run == rank) for rank in range(world)]
