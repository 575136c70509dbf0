"""Options of the built-in placements; light, so that validation needs neither torch nor ray."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True, slots=True)
class ColocateOptions:
    """All model roles on the same devices, the reward scorer in a CPU process of its own."""

    workers: int = 1
    """Processes that hold the models, one for each device."""
    device: Literal["cpu", "cuda"] = "cpu"
    """``cpu`` takes slots (``cpu:0``, ``cpu:1`` …), ``cuda`` one accelerator for each worker."""
    threads: int = 1
    """Threads of each worker's tensor library."""
    slots_per_core: int = 1
    """CPU workers that share a core; above 1 oversubscribes knowingly."""
    timeout_s: float = 60.0
    """Seconds in which the cluster must give the devices."""

    def __post_init__(self) -> None:
        for name in ("workers", "threads", "slots_per_core"):
            if getattr(self, name) < 1:
                raise ValueError(f"placement {name}={getattr(self, name)}: must be at least 1")
        if self.device not in ("cpu", "cuda"):
            raise ValueError(f"placement device={self.device!r}: must be 'cpu' or 'cuda'")
        if not self.timeout_s > 0:
            raise ValueError(f"placement timeout_s={self.timeout_s}: must be above 0 s")
