"""What the objects of a program share: plugins, the cluster, worker groups and seeds."""

import atexit
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bestiary.distributed import cluster
from bestiary.distributed.guard import Guard
from bestiary.distributed.placement import check_demand, local_cpus
from bestiary.distributed.pools import ResourcePool
from bestiary.distributed.tokens import JOB_VARIABLE, TEMP_VARIABLE
from bestiary.distributed.worker_group import WorkerGroup
from bestiary.errors import PlacementError
from bestiary.plugins.manager import load_plugins
from bestiary.roles.services import Services
from bestiary.runtime.components import Components
from bestiary.runtime.worker import WorkerPlan

_log = logging.getLogger(__name__)

MODEL_WORKER = "bestiary.runtime.worker:ModelWorker"
SPARE_SLOTS = 64
"""CPU slots of a cluster on this machine: pools are made one after another, so the number that a
program needs is not known at its start. A warning says when they share cores."""

_WORKER_ENV: Mapping[str, str] = {
    "TOKENIZERS_PARALLELISM": "false",
    "TRANSFORMERS_VERBOSITY": "error",
}


@dataclass
class Workbench:
    """Everything that is started for a program.

    Args:
        seed: of the random streams of generation.
        address: ``host:port`` of a Ray cluster to join; empty starts one on this machine.
        timeout_s: seconds in which a call must be answered.
        log_dir: of the workers' logs; None is a folder that is removed at the end.
    """

    seed: int = 0
    address: str = ""
    timeout_s: float = 1800.0
    log_dir: Path | None = None
    groups: dict[str, tuple[ResourcePool, WorkerGroup]] = field(default_factory=dict)
    scorers: list[WorkerGroup] = field(default_factory=list)
    _draws: dict[str, int] = field(default_factory=dict)
    _names: dict[str, int] = field(default_factory=dict)
    _guard: Guard | None = None

    def __post_init__(self) -> None:
        self.plugins = load_plugins()
        self.components = Components(self.plugins)
        self._started = False

    def services(self) -> Services:
        """Of one object: a ledger of its own, the seed and resolver of all."""
        return Services(self.seed, self.components.options)

    def name(self, kind: str) -> str:
        """``actor``, ``actor-2`` and so on."""
        number = self._names[kind] = self._names.get(kind, 0) + 1
        return kind if number == 1 else f"{kind}-{number}"

    def draw(self, uid: str) -> int:
        """How often a prompt was handed out before: part of its random streams."""
        number = self._draws.get(uid, 0)
        self._draws[uid] = number + 1
        return number

    # ------------------------------------------------------------------ processes

    def group(self, pool: ResourcePool) -> WorkerGroup:
        """The processes of a pool: all models on it share them.

        Raises:
            PlacementError: if the pool cannot be had, or its name belongs to other devices.
        """
        if pool.name in self.groups:
            known, group = self.groups[pool.name]
            if (known.devices, known.nodes) != (pool.devices, pool.nodes):
                raise PlacementError(
                    f"two pools are named {pool.name!r}: one of {', '.join(known.devices)}, one "
                    f"of {', '.join(pool.devices)}",
                    hint="give each pool a name of its own, or pass the same object twice",
                )
            return group
        plan = WorkerPlan({}, self.plugins.fingerprint())
        group = self.start(pool.name, pool, MODEL_WORKER, plan)
        self.groups[pool.name] = (pool, group)
        return group

    def start(self, name: str, pool: ResourcePool, worker: str, args: Any) -> WorkerGroup:  # noqa: ANN401
        """A worker of a class on each device of a pool."""
        log_dir = self._open()
        demands = [known.demand() for known, _ in self.groups.values()]
        check_demand([*demands, pool.demand()], cluster.machines())
        return WorkerGroup(
            name,
            pool,
            worker,
            args,
            log_dir=log_dir,
            env={**self.plugins.environment(), **_WORKER_ENV},
            timeout_s=self.timeout_s,
        )

    def _open(self) -> Path:
        """Start or join the cluster; returns where workers log."""
        if self._started and self.log_dir is not None:
            return self.log_dir
        if JOB_VARIABLE not in os.environ:
            # Every process that this one starts carries the token; the guard ends them even when
            # this process is killed.
            self._guard = Guard(JOB_VARIABLE)
            os.environ[JOB_VARIABLE] = self._guard.token
            os.environ[TEMP_VARIABLE] = str(self._guard.temp)
        temp = Path(os.environ[TEMP_VARIABLE])
        self.log_dir = (temp / "logs" if self.log_dir is None else self.log_dir).absolute()
        self.log_dir.mkdir(parents=True, exist_ok=True)
        cores = os.cpu_count() or 1
        cpus = None if self.address else max(cores, SPARE_SLOTS)
        cluster.start_cluster(address=self.address, num_cpus=cpus)
        self._started = True
        return self.log_dir

    def warn_if_shared(self) -> str:
        """Warn when the workers of this machine share cores; returns the warning."""
        demands = [pool.demand() for pool, _ in self.groups.values()]
        text = "" if self.address else local_cpus(demands, os.cpu_count() or 1)[1]
        if text:
            _log.warning(text)
        return text

    def close(self) -> None:
        """End all processes and remove what they left; may be called again."""
        try:
            for group in reversed([*(g for _, g in self.groups.values()), *self.scorers]):
                group.close()
            if self._started:
                cluster.stop_cluster()
        finally:
            self.groups.clear()
            self.scorers.clear()
            self._started = False
            guard, self._guard = self._guard, None
            if guard is not None:
                guard.close()
                for variable in (JOB_VARIABLE, TEMP_VARIABLE):
                    os.environ.pop(variable, None)


_current: Workbench | None = None


def workbench() -> Workbench:
    """The one of this process, made on first use."""
    global _current
    if _current is None:
        _current = Workbench()
        atexit.register(shutdown)
    return _current


def setup(
    *,
    seed: int = 0,
    address: str = "",
    timeout_s: float = 1800.0,
    log_dir: str | os.PathLike[str] | None = None,
) -> None:
    """Say how the program runs; before the first model is made, else everything starts anew.

    Args:
        seed: of the random streams of generation.
        address: ``host:port`` of a Ray cluster to join; empty starts one on this machine.
        timeout_s: seconds in which a call must be answered.
        log_dir: where workers log; None is a folder that is removed at the end.
    """
    global _current
    shutdown()
    folder = None if log_dir is None else Path(log_dir)
    _current = Workbench(seed=seed, address=address, timeout_s=timeout_s, log_dir=folder)
    atexit.register(shutdown)


def shutdown() -> None:
    """End every process that this program has started; objects made before are unusable after."""
    global _current
    bench, _current = _current, None
    atexit.unregister(shutdown)
    if bench is not None:
        bench.close()
