"""What runs in a worker process: the shell around the worker class of a group."""

import logging
import os
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

from bestiary.batch import RowBlock
from bestiary.distributed.exits import record_exits, redirect_output
from bestiary.distributed.failures import RankError
from bestiary.distributed.handles import Answer
from bestiary.distributed.seat import Seat, apply_visible_devices

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Home:
    """Where a rank was put by the scheduler."""

    node_id: str
    host: str
    ip: str
    pid: int


@dataclass(frozen=True, slots=True)
class Opening:
    """What a rank must know before it imports its worker class."""

    target: str
    group: str
    rank: int
    world: int
    log_path: Path
    exit_prefix: Path
    threads: int
    accelerator: bool
    loopback: bool


def load_class(target: str) -> Callable[..., Any]:
    """The class at ``package.module:Class``."""
    module, _, name = target.partition(":")
    if not name:
        raise ValueError(f"worker {target!r} is not of the form 'package.module:Class'")
    found: Callable[..., Any] = getattr(import_module(module), name)
    return found


class RankShell:
    """The Ray actor of one rank: output, devices, process group, calls.

    Exceptions leave it as :class:`RankError`, which always pickles and carries the traceback.
    """

    def __init__(self) -> None:
        self._class: Callable[..., Any] | None = None
        self._worker: Any = None
        self._opening: Opening | None = None
        self._device = "cpu"
        self._store: Any = None
        self._grouped = False

    def home(self) -> Home:
        """Where this process is."""
        import ray

        context = ray.get_runtime_context()
        ip = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]  # Ray has no types
        return Home(context.get_node_id(), socket.gethostname(), ip, os.getpid())

    def open(self, opening: Opening) -> bool:
        """Take the log, devices and threads; import the class.

        Returns:
            Whether the class wants a process group.
        """
        log = redirect_output(opening.log_path)
        record_exits(log, opening.exit_prefix)
        with reported():
            self._opening = opening
            self._device = apply_visible_devices(_assigned() if opening.accelerator else ())
            if opening.loopback:
                os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
            self._class = load_class(opening.target)
            if "torch" in sys.modules:
                import torch

                torch.set_num_threads(opening.threads)
            return bool(getattr(self._class, "needs_process_group", False)) and opening.world > 1

    def host_store(self, ip: str, timeout_s: float) -> int:
        """Open the store at which the ranks meet, on a free port; returns the port."""
        with reported():
            self._store = _store(ip, 0, timeout_s, master=True)
            return int(self._store.port)

    def build(self, args: Any, meet: tuple[str, int] | None, timeout_s: float) -> None:  # noqa: ANN401
        """Join the process group at ``meet`` and build the worker."""
        with reported():
            opening = self._opening
            if opening is None or self._class is None:
                raise RuntimeError("build was called before open")
            if meet is not None:
                self._join(meet, opening, timeout_s)
            seat = Seat(
                rank=opening.rank,
                world=opening.world,
                device=self._device,
                group=opening.group,
                host=socket.gethostname(),
                pid=os.getpid(),
                log_path=opening.log_path,
            )
            self._worker = self._class(args, seat)

    def _join(self, meet: tuple[str, int], opening: Opening, timeout_s: float) -> None:
        import torch.distributed as dist

        timeout = timedelta(seconds=timeout_s)
        store = self._store or _store(*meet, timeout_s)
        backend = "gloo" if self._device == "cpu" else "cpu:gloo,cuda:nccl"
        dist.init_process_group(
            backend, store=store, rank=opening.rank, world_size=opening.world, timeout=timeout
        )
        self._grouped = True

    def call(self, method: str, args: tuple[Any, ...]) -> Any:  # noqa: ANN401
        """Run a method; its result goes to the controller."""
        with reported():
            return getattr(self._worker, method)(*args)

    def call_block(self, method: str, args: tuple[Any, ...]) -> tuple[Any, Answer]:
        """Run a method that returns (block, report); token columns stay in the object store."""
        with reported():
            block, report = split_result(method, getattr(self._worker, method)(*args))
            return dict(block.tokens), Answer(dict(block.table), report, block.size_bytes)

    def close(self) -> None:
        """Let the worker clean up and leave the process group."""
        with reported():
            try:
                if hasattr(self._worker, "close"):
                    self._worker.close()
            finally:
                self._worker = None
                if self._grouped:
                    import torch.distributed as dist

                    dist.destroy_process_group()
                    self._grouped = False


class reported:
    """Turns whatever is raised inside into a :class:`RankError`, and logs it."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            return
        described = RankError.of(error)
        sys.stderr.write(described.trace)
        raise described from None


def split_result(method: str, result: Any) -> tuple[RowBlock, Any]:  # noqa: ANN401
    """The (block, report) that a method must have returned."""
    if isinstance(result, tuple) and len(result) == 2 and isinstance(result[0], RowBlock):
        return result
    raise TypeError(
        f"worker method {method!r} was called for a block and returned "
        f"{type(result).__name__}; wanted (RowBlock, report)"
    )


def _assigned() -> list[str]:
    import ray

    return [str(i) for i in ray.get_runtime_context().get_accelerator_ids().get("GPU", [])]


def _store(host: str, port: int, timeout_s: float, *, master: bool = False) -> Any:  # noqa: ANN401
    """The store at which ranks meet; port 0 takes a free one."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # public, not in __all__

    timeout = timedelta(seconds=timeout_s)
    return TCPStore(host, port, is_master=master, wait_for_workers=False, timeout=timeout)
