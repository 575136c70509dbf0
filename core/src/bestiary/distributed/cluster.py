"""Starting, joining and leaving a Ray cluster."""

import contextlib
import logging
import os
import secrets
import shutil
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bestiary.distributed.placement import Machine
from bestiary.distributed.tokens import ADDRESS_VARIABLE, TEMP_VARIABLE
from bestiary.errors import PlacementError

_log = logging.getLogger(__name__)

OBJECT_STORE_BYTES = 512 << 20
"""Default size of a local cluster's object store."""

_QUIET: Mapping[str, str] = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_enable_metrics_collection": "0",
    # Workers started before they are asked for only compete with those that are.
    "RAY_prestart_worker_first_driver": "0",
    "RAY_enable_worker_prestart": "0",
    "RAY_IGNORE_UNHANDLED_ERRORS": "1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # A process that renames itself must keep its environment readable: the guard looks there.
    "SPT_NOENV": "1",
}
_UNUSED_SERVICES = ("start_monitor", "start_log_monitor")
"""The autoscaler of a cluster that does not grow, and the reader of logs that nobody shows."""


_own_folders: list[Path] = []
"""Made here, and so removed here."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """The cluster that this process is a driver of.

    Args:
        address: ``host:port`` at which other drivers can join.
        namespace: of the names that this driver makes.
        local: started here, and so stopped with this process.
        startup_s: seconds that it took.
        session_dir: folder of Ray's own logs and sockets.
    """

    address: str
    namespace: str
    local: bool
    startup_s: float
    session_dir: Path


def start_cluster(
    *,
    address: str = "",
    num_cpus: int | None = None,
    num_gpus: int | None = None,
    temp_dir: Path | str | None = None,
    namespace: str = "",
    object_store_bytes: int = OBJECT_STORE_BYTES,
    timeout_s: float = 60.0,
) -> Cluster:
    """Start a cluster on this machine, or join one.

    Args:
        address: ``host:port`` of a cluster to join; empty takes ``BESTIARY_RAY_ADDRESS`` (a sweep
            sets it for its jobs), and where that is empty too starts a cluster here.
        num_cpus: logical cores of a local cluster; None is the number of real ones.
        num_gpus: accelerators of a local cluster; None finds them.
        temp_dir: for sockets and logs; short, since paths of sockets are limited. None takes
            ``BESTIARY_TEMP`` (set by the guard, which removes it), else a new folder.
        namespace: empty makes a new one.
        object_store_bytes: shared memory for blocks.
        timeout_s: seconds in which the cluster must answer.

    Raises:
        PlacementError: if there is no answer, or this process has a cluster already.
    """
    import ray

    if ray.is_initialized():
        raise PlacementError(
            "this process has joined a cluster already", hint="call stop_cluster() first"
        )
    address = address or os.environ.get(ADDRESS_VARIABLE, "")
    namespace = namespace or f"bestiary-{secrets.token_hex(4)}"
    began = time.monotonic()
    common: dict[str, Any] = {
        "namespace": namespace,
        "log_to_driver": False,
        "configure_logging": False,
    }
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    with _signal_handlers_kept(), _without_noise():
        if address:
            _reachable(address, timeout_s)
            # Ray would look for a loopback address at the machine's other one.
            local = address.startswith("127.0.0.1:")
            with _on_loopback() if local else contextlib.nullcontext():
                ray.init(address=address, **common)
        else:
            _init_local(num_cpus, num_gpus, temp_dir, object_store_bytes, timeout_s, common)
    context = ray.get_runtime_context()
    session = Path(ray._private.worker._global_node.get_session_dir_path())  # type: ignore[attr-defined]  # a node once initialised
    startup_s = time.monotonic() - began
    _log.info("cluster at %s after %.1f s", context.gcs_address, startup_s)
    return Cluster(context.gcs_address, namespace, not address, startup_s, session)


def _init_local(
    num_cpus: int | None,
    num_gpus: int | None,
    temp_dir: Path | str | None,
    object_store_bytes: int,
    timeout_s: float,
    common: Mapping[str, Any],
) -> None:
    import ray

    given = temp_dir or os.environ.get(TEMP_VARIABLE, "")
    folder = Path(given or tempfile.mkdtemp(prefix="bst-"))
    if not given:
        _own_folders.append(folder)
    folder.mkdir(parents=True, exist_ok=True)
    # Ray turns its authentication on for local clusters; with a secret of its own the cluster
    # neither reads nor writes one in the home folder.
    if "RAY_AUTH_MODE" not in os.environ:
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    os.environ.update({"RAY_raylet_start_wait_time_s": str(int(timeout_s))})
    with _without_unused_services(), _on_loopback():
        ray.init(
            address="local",
            num_cpus=num_cpus,
            num_gpus=num_gpus,
            include_dashboard=False,
            object_store_memory=object_store_bytes,
            _temp_dir=str(folder),
            **common,
        )


def stop_cluster() -> None:
    """Leave the cluster; one that was started here ends. Does nothing without a cluster."""
    import ray

    if ray.is_initialized():
        ray.shutdown()
    while _own_folders:
        shutil.rmtree(_own_folders.pop(), ignore_errors=True)


def require_cluster() -> None:
    """Refuse to go on without a cluster.

    Raises:
        PlacementError: if this process has not joined one.
    """
    import ray

    if not ray.is_initialized():
        raise PlacementError(
            "this process has joined no cluster", hint="call start_cluster() before placing workers"
        )


def live_nodes() -> list[dict[str, Any]]:
    """Ray's own record of each live machine."""
    import ray

    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]  # Ray has no types
    return [node for node in nodes if node["Alive"]]


def machines() -> list[Machine]:
    """What each live machine of the cluster has in all, used or not."""
    return [
        Machine(node["Resources"].get("CPU", 0.0), node["Resources"].get("GPU", 0.0))
        for node in live_nodes()
    ]


def leftovers() -> list[str]:
    """Live actors and placement groups of the cluster: empty after all groups were closed."""
    import ray
    from ray._private.state import state

    left = [
        f"actor {key} {actor['State']}"
        for key, actor in state.actor_table(None, None, None).items()
        if actor["State"] != "DEAD"
    ]
    left += [
        f"placement group {key} {group['state']}"
        for key, group in ray.util.placement_group_table().items()
        if group["state"] != "REMOVED"
    ]
    return left


# --------------------------------------------------------------------------- around ray.init


@contextlib.contextmanager
def _signal_handlers_kept() -> Iterator[None]:
    """Ray replaces the handler of SIGTERM by one that exits; a program that set one keeps it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if before not in (signal.SIG_DFL, None):
            signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _without_unused_services() -> Iterator[None]:
    """Start two Python processes fewer: about a second of start-up, another of shutdown.

    ``ray start`` can leave them out (``--no-monitor``, ``--include-log-monitor=False``) but
    ``ray.init`` has no argument for it. Where a version of Ray has no such methods, they start.
    """
    from ray._private.node import Node

    kept = {name: getattr(Node, name) for name in _UNUSED_SERVICES if hasattr(Node, name)}
    for name in kept:
        setattr(Node, name, lambda self, *args, **kwargs: None)
    try:
        yield
    finally:
        for name, method in kept.items():
            setattr(Node, name, method)


@contextlib.contextmanager
def _on_loopback() -> Iterator[None]:
    """Listen on 127.0.0.1 only, as Ray does by itself where it makes no multi-machine clusters."""
    from ray._private import ray_constants

    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    before = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


@contextlib.contextmanager
def _without_noise() -> Iterator[None]:
    """Send what Ray would print about dead workers to the log: the supervisor says it better."""
    from ray._private import worker

    level = logging.getLogger("ray").level
    logging.getLogger("ray").setLevel(logging.ERROR)
    if hasattr(worker, "print_to_stdstream"):
        worker.print_to_stdstream = _to_log
    try:
        yield
    finally:
        logging.getLogger("ray").setLevel(level)


def _to_log(data: Mapping[str, Any], ignore_prefix: bool = False) -> None:
    for line in data.get("lines", ()):
        _log.debug("ray: %s", line)


def _reachable(address: str, timeout_s: float) -> None:
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=timeout_s):
            return
    except (OSError, ValueError) as error:
        raise PlacementError(
            f"no cluster answers at {address!r} within {timeout_s:g} s: {error}",
            hint="check the address, or leave it empty to start a cluster on this machine",
        ) from error
