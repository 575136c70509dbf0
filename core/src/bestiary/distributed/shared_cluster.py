"""One cluster for several jobs, as in a sweep: it outlives each job and ends with the launcher."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from select import select

from bestiary.distributed.guard import GuardedProcess
from bestiary.distributed.tokens import ADDRESS_VARIABLE, CLUSTER_VARIABLE, new_token
from bestiary.errors import PlacementError


@dataclass(frozen=True, slots=True)
class SharedCluster:
    """A cluster that jobs join.

    Args:
        address: ``host:port``.
        env: variables that a job needs to find and enter it.
        token: of its processes.
    """

    address: str
    env: dict[str, str]
    token: str


@contextmanager
def shared_cluster(
    num_cpus: int | None = None, num_gpus: int | None = None, timeout_s: float = 90.0
) -> Iterator[SharedCluster]:
    """Keep a cluster on this machine while the context is open.

    Its processes carry a token of their own, so the clean-up of a job leaves it alone::

        with shared_cluster(num_cpus=4) as cluster:
            for argv in jobs:
                run_guarded(argv, {**os.environ, **cluster.env})

    Raises:
        PlacementError: if it does not start in time.
    """
    token = new_token()
    argv = [sys.executable, "-m", "bestiary.distributed.shared_cluster"]
    argv += [json.dumps({"num_cpus": num_cpus, "num_gpus": num_gpus})]
    with GuardedProcess(
        argv,
        variable=CLUSTER_VARIABLE,
        token=token,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as guarded:
        out = guarded.process.stdout
        ready = out is not None and bool(select([out], [], [], timeout_s)[0])
        line = out.readline() if ready and out is not None else b""
        if not line:
            raise PlacementError(
                f"the cluster for the jobs did not start within {timeout_s:g} s",
                hint="its own output says why; RAY_* variables in the environment may be at fault",
            )
        said = json.loads(line)
        env = {ADDRESS_VARIABLE: said["address"], CLUSTER_VARIABLE: token, **said["env"]}
        try:
            yield SharedCluster(said["address"], env, token)
        finally:
            _let_end(guarded.process)


def _let_end(process: subprocess.Popen[bytes]) -> None:
    """Ask the holder of the cluster to stop it; the guard does so where it does not."""
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout=15)


def main(settings: str) -> None:
    """Hold a cluster until standard input ends."""
    from bestiary.distributed.cluster import start_cluster, stop_cluster

    os.environ.pop(ADDRESS_VARIABLE, None)
    cluster = start_cluster(**json.loads(settings))
    names = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN")
    env = {name: os.environ[name] for name in names if name in os.environ}
    sys.stdout.write(json.dumps({"address": cluster.address, "env": env}) + "\n")
    sys.stdout.flush()
    sys.stdin.read()
    stop_cluster()


if __name__ == "__main__":
    main(sys.argv[1])
