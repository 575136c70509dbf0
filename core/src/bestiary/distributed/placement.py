"""Which roles share which devices, and whether a cluster has them: pure functions."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from bestiary.errors import PlacementError
from bestiary.protocols import Role

Device = Literal["cpu", "cuda"]

MODELS = "models"
"""Name of the pool of model roles under ``colocate``."""
SCORERS = "scorers"
"""Name of the pool of reward functions."""

_GRAIN = 10_000
"""The cluster counts resources in steps of 1/10000."""


def model_of(role: Role) -> str:
    """The model that a role is a view of; one that names none has one of its own name."""
    return role.model or role.name


@dataclass(frozen=True, slots=True)
class PlacementRequest:
    """What a placement is asked about.

    Args:
        roles: the algorithm's roles.
        scorers: names of the roles that are reward functions rather than models; None takes
            every role of kind ``score``.
    """

    roles: tuple[Role, ...]
    scorers: frozenset[str] | None = None

    def is_scorer(self, role: Role) -> bool:
        """Whether the role runs a reward function."""
        return role.kind == "score" if self.scorers is None else role.name in self.scorers

    def models(self) -> dict[str, tuple[Role, ...]]:
        """The roles that are views of each model, in their order: they cannot be parted."""
        found: dict[str, tuple[Role, ...]] = {}
        for role in self.roles:
            if not self.is_scorer(role):
                found[model_of(role)] = (*found.get(model_of(role), ()), role)
        return found


@dataclass(frozen=True, slots=True)
class PoolPlan:
    """A pool and who works in it.

    Args:
        name: unique in the placement.
        workers: processes, one for each device.
        device: kind of device.
        roles: names of the roles that share the processes.
        threads: of the tensor library in each process.
        slots_per_core: CPU workers that share a core.
        nodes: machines over which the workers are spread evenly; 0 leaves it to the cluster.
        timeout_s: seconds in which the cluster must give the devices.
    """

    name: str
    workers: int
    device: Device
    roles: tuple[str, ...]
    threads: int = 1
    slots_per_core: int = 1
    nodes: int = 0
    timeout_s: float = 60.0

    @property
    def devices(self) -> tuple[str, ...]:
        """Its device names, ``cpu:0`` and so on."""
        return tuple(f"{self.device}:{i}" for i in range(self.workers))


@dataclass(frozen=True, slots=True)
class Placement:
    """A partition of the roles into pools."""

    pools: tuple[PoolPlan, ...]

    def __post_init__(self) -> None:
        names = [pool.name for pool in self.pools]
        roles = [role for pool in self.pools for role in pool.roles]
        for what, given in (("pool", names), ("role", roles)):
            twice = sorted({name for name in given if given.count(name) > 1})
            if twice:
                raise PlacementError(f"placement names {what} {', '.join(twice)} more than once")

    def pool_of(self, role: str) -> PoolPlan:
        """The pool in which a role works.

        Raises:
            PlacementError: if no pool has it.
        """
        for pool in self.pools:
            if role in pool.roles:
                return pool
        have = ", ".join(f"{pool.name}: {', '.join(pool.roles)}" for pool in self.pools)
        raise PlacementError(f"role {role!r} is in no pool of the placement ({have})")


def check_models(placement: Placement, request: PlacementRequest) -> None:
    """Refuse a placement that would build one model in two pools.

    Raises:
        PlacementError: naming the roles and pools.
    """
    for model, roles in request.models().items():
        homes = {role.name: placement.pool_of(role.name).name for role in roles}
        if len(set(homes.values())) > 1:
            where = ", ".join(f"{role} in {pool!r}" for role, pool in homes.items())
            raise PlacementError(
                f"the roles on model {model!r} are in different pools: {where}",
                hint="views of one model share its processes; put them into one pool",
            )


def regrouped(placement: Placement, pools: Mapping[str, Sequence[str]]) -> Placement:
    """A plugin's partition of the roles, with the devices of the placement that was chosen.

    Args:
        placement: what the chosen component planned.
        pools: role names by pool, from ``bestiary_plan_placement``; every role once.

    Raises:
        PlacementError: if roles are missing or unknown.
    """
    known = {role for pool in placement.pools for role in pool.roles}
    named = {role for roles in pools.values() for role in roles}
    if known != named:
        raise PlacementError(
            f"a plugin placed the roles {sorted(named)}; the algorithm has {sorted(known)}",
            hint="place every role exactly once, or return None to leave it to placement=NAME",
        )
    return Placement(
        tuple(
            replace(placement.pool_of(roles[0]), name=name, roles=tuple(roles))
            for name, roles in pools.items()
            if roles
        )
    )


# --------------------------------------------------------------------------- demand and supply


@dataclass(frozen=True, slots=True)
class PoolDemand:
    """What one pool asks of a cluster: ``count`` equal bundles.

    Args:
        pool: name of the pool.
        roles: who works there, for messages.
        count: number of bundles; each must fit one machine.
        cpu: cores of one bundle.
        gpu: accelerators of one bundle.
        apart: each bundle on a machine of its own.
    """

    pool: str
    roles: tuple[str, ...]
    count: int
    cpu: float
    gpu: float = 0.0
    apart: bool = False

    def __str__(self) -> str:
        who = f"role {', '.join(map(repr, self.roles))} " if self.roles else ""
        return f"{who}(pool {self.pool!r})"


@dataclass(frozen=True, slots=True)
class Machine:
    """What one machine has."""

    cpu: float
    gpu: float = 0.0

    def bundles(self, demand: PoolDemand) -> int:
        """How many bundles of a demand fit."""
        fits = [
            math.floor(have / need + 1e-6)
            for have, need in ((self.cpu, demand.cpu), (self.gpu, demand.gpu))
            if need > 0
        ]
        count = min(fits, default=demand.count)
        return min(count, 1) if demand.apart else count


def slot_cpus(threads: int = 1, slots_per_core: int = 1) -> float:
    """Cores that one CPU worker asks for, rounded down to what a cluster can count."""
    return math.floor(threads / slots_per_core * _GRAIN) / _GRAIN


def pool_demand(plan: PoolPlan, cpus_per_gpu: float = 1.0) -> PoolDemand:
    """What a planned pool asks for."""
    gpu = 1.0 if plan.device == "cuda" else 0.0
    cpu = cpus_per_gpu if gpu else slot_cpus(plan.threads, plan.slots_per_core)
    if plan.nodes == 0:
        return PoolDemand(plan.name, plan.roles, plan.workers, cpu, gpu)
    each, rest = divmod(plan.workers, plan.nodes)
    if rest:
        raise PlacementError(
            f"pool {plan.name!r}: {plan.workers} workers cannot be spread evenly over "
            f"{plan.nodes} machines"
        )
    return PoolDemand(plan.name, plan.roles, plan.nodes, cpu * each, gpu * each, apart=True)


def check_demand(demands: Sequence[PoolDemand], machines: Sequence[Machine]) -> None:
    """Refuse what a cluster can never give, naming the resource that is short.

    Only demands that are impossible are refused: in total, or pool by pool on the machines.

    Raises:
        PlacementError: with a line for each shortage: role, pool, resource, requested, available.
    """
    short: list[str] = []
    for resource in ("gpu", "cpu"):
        available = sum(getattr(machine, resource) for machine in machines)
        asked = [(d, d.count * getattr(d, resource)) for d in demands]
        total = sum(amount for _, amount in asked)
        alone = [(d, amount) for d, amount in asked if amount > available + 1e-6]
        short += [
            f"{d}: {resource} {_n(amount)} requested, {_n(available)} available"
            for d, amount in alone
        ]
        if total > available + 1e-6 and not alone:
            parts = ", ".join(f"{d}: {_n(amount)}" for d, amount in asked if amount)
            short.append(
                f"all pools together: {resource} {_n(total)} requested, "
                f"{_n(available)} available ({parts})"
            )
    if not short:
        short = [text for d in demands if (text := _does_not_fit(d, machines))]
    if short:
        raise PlacementError(
            "the cluster cannot give what the placement asks for: " + "; ".join(short),
            hint="ask for fewer workers (placement.workers), raise placement.slots_per_core for "
            "CPU workers, or use a larger cluster",
        )


def _does_not_fit(demand: PoolDemand, machines: Sequence[Machine]) -> str:
    fits = sum(machine.bundles(demand) for machine in machines)
    if fits >= demand.count:
        return ""
    what = ", ".join(
        f"{name} {_n(need)}" for name, need in (("gpu", demand.gpu), ("cpu", demand.cpu)) if need
    )
    where = " on a machine of its own each" if demand.apart else ""
    return f"{demand}: {demand.count} bundles of {what}{where} requested, {fits} fit"


def local_cpus(demands: Sequence[PoolDemand], cores: int) -> tuple[int, str]:
    """Logical cores of a cluster on this machine, and a warning when it is oversubscribed.

    A local cluster counts at least what is demanded, so that a small machine can run many workers.
    The pool of scorers works while the models wait and does not count as too much.
    """
    needed = sum(d.count * d.cpu for d in demands)
    busy = sum(d.count * d.cpu for d in demands if d.pool != SCORERS)
    warning = ""
    if busy > cores + 1e-6:
        warning = (
            f"{_n(busy)} cores are asked for by workers and this machine has {cores}: "
            "they will share, and every worker becomes slower"
        )
    return max(cores, math.ceil(needed - 1e-6)), warning


def _n(amount: float) -> str:
    return f"{amount:g}"
