"""Options of the built-in placements; light, so that validation needs neither torch nor ray."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceOptions:
    """What the placements share: the devices of their pools."""

    device: Literal["cpu", "cuda"] = "cpu"
    """``cpu`` takes slots (``cpu:0``, ``cpu:1`` …), ``cuda`` one accelerator for each worker."""
    threads: int = 1
    """Threads of each worker's tensor library."""
    slots_per_core: int = 1
    """CPU workers that share a core; above 1 oversubscribes knowingly."""
    nodes: int = 0
    """Machines over which the workers of a pool are spread evenly; 0 leaves it to the cluster."""
    timeout_s: float = 60.0
    """Seconds in which the cluster must give the devices."""

    def __post_init__(self) -> None:
        for name in ("threads", "slots_per_core"):
            at_least(name, getattr(self, name), 1)
        at_least("nodes", self.nodes, 0)
        if self.device not in ("cpu", "cuda"):
            raise ValueError(f"placement device={self.device!r}: must be 'cpu' or 'cuda'")
        if not self.timeout_s > 0:
            raise ValueError(f"placement timeout_s={self.timeout_s}: must be above 0 s")


def at_least(name: str, value: int, least: int) -> None:
    """Refuse a number of workers and the like.

    Raises:
        ValueError: naming the option.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"placement {name}={value!r}: must be a whole number, at least {least}")


@dataclass(frozen=True, kw_only=True, slots=True)
class ColocateOptions(DeviceOptions):
    """All model roles on the same devices, the reward scorer in a CPU process of its own."""

    workers: int = 1
    """Processes that hold the models, one for each device."""

    def __post_init__(self) -> None:
        DeviceOptions.__post_init__(self)
        at_least("workers", self.workers, 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class SplitOptions(DeviceOptions):
    """Two pools: what generates with its reference, and the other models (HybridFlow's split).

    The second holds critics and other value models; an algorithm without any has its reference
    there. Models of different pools work side by side.
    """

    workers: int = 1
    """Processes of the first pool."""
    second_workers: int = 1
    """Processes of the second pool."""

    def __post_init__(self) -> None:
        DeviceOptions.__post_init__(self)
        at_least("workers", self.workers, 1)
        at_least("second_workers", self.second_workers, 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class StandaloneOptions(DeviceOptions):
    """A pool of its own for each model (OpenRLHF's layout, in HybridFlow's terms)."""

    workers: int = 1
    """Processes of each pool."""
    sizes: Mapping[str, int] = field(default_factory=dict)
    """Processes of single models, as in ``placement.sizes={actor: 2}``."""

    def __post_init__(self) -> None:
        DeviceOptions.__post_init__(self)
        at_least("workers", self.workers, 1)
        for name, size in self.sizes.items():
            at_least(f"sizes.{name}", size, 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class ExplicitOptions(DeviceOptions):
    """Pools as they are written: every model role in exactly one."""

    pools: Mapping[str, Any] = field(default_factory=dict)
    """``{policy: {roles: [actor, reference], workers: 2}, values: {roles: [critic]}}``; a pool may
    set ``device threads slots_per_core nodes`` of its own. Scorers that are not named get a
    process each."""
