"""Where worker groups run: in a Ray cluster, or in this process."""

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bestiary.config.plan import RunPlan
from bestiary.distributed.placement import Placement, PoolPlan
from bestiary.errors import PlacementError
from bestiary.plugins.manager import PluginSet
from bestiary.roles.model import Group

IN_PROCESS = "inprocess"
"""The placement that runs every worker in the driver's own process, for debugging."""


class Hosts:
    """Starts worker groups and closes them.

    Args:
        plan: the configuration.
        run_dir: for the workers' logs.
        plugins: whose selection the workers must repeat.
    """

    def __init__(self, plan: RunPlan, run_dir: Path, plugins: PluginSet) -> None:
        self.plan = plan
        self.log_dir = run_dir / "logs"
        self.plugins = plugins
        self.groups: list[Any] = []

    def reserve(self, placement: Placement) -> None:
        """Make sure that the placement's devices can be had: this process is one worker."""
        for pool in placement.pools:
            if len(pool.devices) > 1:
                raise PlacementError(
                    f"placement={IN_PROCESS} runs one worker in this process, but the pool "
                    f"{pool.name!r} of roles {', '.join(pool.roles)} asks for {len(pool.devices)}",
                    hint="set placement.workers=1, or placement=colocate for worker processes",
                )

    def start(self, wanted: Sequence[tuple[PoolPlan, str, object]]) -> list[Group]:
        """For each (pool, worker class, its arguments) a group with a worker on every device.

        They start at the same time; when one fails, those that started are closed with the rest.
        """
        with ThreadPoolExecutor(max_workers=max(1, len(wanted))) as threads:
            starting = [threads.submit(self._start_one, *one) for one in wanted]
        self.groups += [s.result() for s in starting if s.exception() is None]
        return [s.result() for s in starting]

    def _start_one(self, pool: PoolPlan, worker: str, args: object) -> Group:
        import torch

        from bestiary.distributed.inprocess import InProcessGroup

        torch.set_num_threads(pool.threads)
        device = pool.devices[0]
        return InProcessGroup(
            pool.name, worker, args, device="cpu" if device.startswith("cpu") else device
        )

    def close(self) -> None:
        """End all groups, the last one first."""
        for group in reversed(self.groups):
            group.close()


class RayHosts(Hosts):
    """Worker groups as processes of a Ray cluster."""

    def __init__(self, plan: RunPlan, run_dir: Path, plugins: PluginSet) -> None:
        super().__init__(plan, run_dir, plugins)
        self._reserved: dict[str, Any] = {}

    def reserve(self, placement: Placement) -> None:
        """Start or join the cluster, compare the demand with it, and take the devices."""
        from bestiary.distributed import cluster
        from bestiary.distributed.placement import check_demand, local_cpus, pool_demand
        from bestiary.distributed.pools import ResourcePool, reserve

        config = self.plan.run.cluster
        demands = [pool_demand(pool) for pool in placement.pools]
        address = config.address or ""
        cores = config.num_cpus or os.cpu_count() or 1
        if not address:
            cores, warning = local_cpus(demands, cores)
            if warning:
                self.warn(warning)
        cluster.start_cluster(
            address=address,
            num_cpus=None if address else cores,
            object_store_bytes=config.object_store_mb << 20,
        )
        check_demand(demands, cluster.machines())
        for pool in placement.pools:
            self._reserved[pool.name] = reserve(ResourcePool.of(pool))

    def warn(self, text: str) -> None:
        """Say something that does not stop the run."""
        import logging

        logging.getLogger("bestiary.runtime").warning(text)

    def _start_one(self, pool: PoolPlan, worker: str, args: object) -> Group:
        from bestiary.distributed.worker_group import WorkerGroup

        return WorkerGroup(
            pool.name,
            self._reserved[pool.name],
            worker,
            args,
            log_dir=self.log_dir,
            env={**self.plugins.environment(), **_WORKER_ENV},
            timeout_s=self.plan.run.timeout_s,
        )

    def close(self) -> None:
        """End all groups, give the devices back and leave the cluster."""
        from bestiary.distributed.cluster import stop_cluster

        try:
            super().close()
            for pool in self._reserved.values():
                pool.release()
        finally:
            stop_cluster()


_WORKER_ENV = {
    "TOKENIZERS_PARALLELISM": "false",
    "TRANSFORMERS_VERBOSITY": "error",
}


@contextmanager
def open_hosts(plan: RunPlan, run_dir: Path, plugins: PluginSet, say: Any) -> Iterator[Hosts]:  # noqa: ANN401
    """The hosts of a run, closed whatever happens."""
    kind = Hosts if plan.choices["placement"] == IN_PROCESS else RayHosts
    hosts = kind(plan, run_dir, plugins)
    (run_dir / "logs").mkdir(exist_ok=True)
    try:
        yield hosts
    finally:
        hosts.close()
