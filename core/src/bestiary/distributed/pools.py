"""Resource pools: devices by name, reserved on the cluster as one placement group."""

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from bestiary.distributed.cluster import machines, require_cluster
from bestiary.distributed.placement import (
    Device,
    PoolDemand,
    PoolPlan,
    check_demand,
    pool_demand,
    slot_cpus,
)
from bestiary.errors import PlacementError

_NAME = re.compile(r"(cpu|cuda):(\d+)")


@dataclass(frozen=True, slots=True)
class ResourcePool:
    """Devices for one worker group; nothing is reserved before :func:`reserve`.

    Give either ``devices`` or ``num_gpus``. Names say kind and number; which accelerators of the
    cluster they become is the scheduler's business, and each worker sees its own as ``cuda:0``.

    Args:
        devices: ``["cpu:0", "cpu:1"]`` or ``["cuda:0", "cuda:1"]``; a CPU device is a slot.
        num_gpus: number of accelerators, instead of names.
        nodes: machines to spread over evenly; None leaves it to the cluster.
        name: for messages.
        threads: of the tensor library in each worker; a CPU slot takes that many cores.
        slots_per_core: CPU workers that share a core.
        roles: who works here, for messages.
        timeout_s: seconds in which the cluster must give the devices.
    """

    devices: Sequence[str] = ()
    num_gpus: int | None = None
    nodes: int | None = None
    name: str = "pool"
    threads: int = 1
    slots_per_core: int = 1
    roles: tuple[str, ...] = ()
    timeout_s: float = 60.0
    kind: Device = field(init=False, default="cpu")

    def __post_init__(self) -> None:
        names = list(self.devices)
        if self.num_gpus is not None:
            if names:
                raise PlacementError(
                    f"pool {self.name!r}: give devices or num_gpus, not both "
                    f"({names}, {self.num_gpus})"
                )
            names = [f"cuda:{i}" for i in range(self.num_gpus)]
        kinds = set()
        for device in names:
            found = _NAME.fullmatch(device)
            if found is None:
                raise PlacementError(
                    f"pool {self.name!r}: device {device!r} is not of the form 'cpu:0' or 'cuda:0'"
                )
            kinds.add(found[1])
        if len(kinds) != 1 or len(set(names)) != len(names):
            raise PlacementError(
                f"pool {self.name!r}: wants different devices of one kind, got {names}",
                hint='for example devices=["cpu:0", "cpu:1"]',
            )
        object.__setattr__(self, "devices", tuple(names))
        object.__setattr__(self, "kind", kinds.pop())

    @classmethod
    def of(cls, plan: PoolPlan) -> "ResourcePool":
        """The pool that a placement asks for."""
        return cls(
            devices=plan.devices,
            nodes=plan.nodes or None,
            name=plan.name,
            threads=plan.threads,
            slots_per_core=plan.slots_per_core,
            roles=plan.roles,
            timeout_s=plan.timeout_s,
        )

    @property
    def size(self) -> int:
        """Number of devices, and of workers."""
        return len(self.devices)

    def demand(self) -> PoolDemand:
        """What it asks of the cluster."""
        return pool_demand(
            PoolPlan(
                self.name,
                self.size,
                self.kind,
                self.roles,
                threads=self.threads,
                slots_per_core=self.slots_per_core,
                nodes=self.nodes or 0,
            )
        )


@dataclass(slots=True)
class ReservedPool:
    """A pool whose devices are held.

    Args:
        pool: what was asked for.
        group: the placement group.
    """

    pool: ResourcePool
    group: Any
    open: bool = True

    def options(self, index: int) -> dict[str, Any]:
        """Options of the actor for the device at ``index``."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        pool = self.pool
        gpu = pool.kind == "cuda"
        bundle = index if not pool.nodes else index * pool.nodes // pool.size
        return {
            "num_cpus": 1.0 if gpu else slot_cpus(pool.threads, pool.slots_per_core),
            "num_gpus": 1 if gpu else 0,
            "scheduling_strategy": PlacementGroupSchedulingStrategy(
                self.group, placement_group_bundle_index=bundle
            ),
        }

    def release(self, timeout_s: float = 10.0) -> None:
        """Give the devices back; returns when the cluster has taken them."""
        import ray

        if not self.open:
            return
        self.open = False
        if not ray.is_initialized():
            return
        ray.util.remove_placement_group(self.group)
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if ray.util.placement_group_table(self.group).get("state") == "REMOVED":
                return
            time.sleep(0.02)


def reserve(pool: ResourcePool) -> ReservedPool:
    """Hold the devices of a pool.

    The demand is compared with the cluster first, so an impossible one is refused at once.

    Raises:
        PlacementError: if the cluster does not have the devices, or does not free them in time.
    """
    import ray

    require_cluster()
    demand = pool.demand()
    check_demand([demand], machines())
    bundle = {name: amount for name, amount in (("CPU", demand.cpu), ("GPU", demand.gpu)) if amount}
    strategy = ("STRICT_SPREAD" if demand.count > 1 else "STRICT_PACK") if pool.nodes else "PACK"
    group = ray.util.placement_group([bundle] * demand.count, strategy=strategy)
    reserved = ReservedPool(pool, group)
    if not group.wait(timeout_seconds=pool.timeout_s):
        reserved.release()
        free = ray.available_resources()  # type: ignore[no-untyped-call]  # Ray has no types
        raise PlacementError(
            f"{demand}: the cluster did not give its devices within {pool.timeout_s:g} s: "
            f"{demand.count} bundles of {bundle} requested, free now: "
            f"cpu {free.get('CPU', 0):g}, gpu {free.get('GPU', 0):g}",
            hint="another run holds them; wait for it, or raise the pool's timeout_s",
        )
    return reserved
