"""WorkerGroup: one worker class on every device of a pool, called as one thing.

A worker class is any class that a rank can import and build as ``Class(args, seat)``::

    # my_package/worker.py
    class Worker:
        needs_process_group = True          # gloo on cpu, nccl on cuda; only where world > 1

        def __init__(self, args: Any, seat: Seat) -> None: ...      # seat.rank .world .device
        def generate(self, requests, temperature) -> tuple[RowBlock, Any]:   # for .call
            return block, {"tokens": 12}
        def update(self, part) -> dict[str, Stat]: ...                        # for .run / .submit
        def close(self) -> None: ...                                          # optional

    pool = ResourcePool(devices=["cpu:0", "cpu:1"], name="model")
    group = WorkerGroup("model", pool, "my_package.worker:Worker", args, log_dir=run_dir / "logs")

    # rank r runs ``generate(*per_rank[r])``; returns at once, one handle a rank
    blocks = group.call("generate", [(requests_0, 1.0), (requests_1, 1.0)])
    blocks[0].table()     # waits for the sample columns only; token columns stay where they are
    blocks[0].report()    # the second value that the method returned
    blocks[0].get()       # brings the whole block here (counted in driver_bytes())

    # handles go in as arguments, anywhere inside them; in the worker ``handle.get()`` reads them
    # from the object store of its machine without a copy (arrays are read-only views)
    group.run("describe", "actor")                            # same arguments on every rank; waits
    pending = group.submit("update", [(blocks[1],), (blocks[0],)])      # plain results, at once
    pending.wait()                                                      # [result of each rank]
    group.close()

A call that fails raises :class:`bestiary.errors.WorkerFailure` at the next wait (of anything), and
its first line is the first failure: ``rank 2 killed by signal 9 at step 3 (group …)``. The group is
then dead: its processes are killed and every later call raises the same error.
:class:`bestiary.distributed.inprocess.InProcessGroup` has the same methods without Ray.
"""

import os
import secrets
import threading
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from bestiary.distributed.autopsy import explain, explain_hang
from bestiary.distributed.ending import end_ranks
from bestiary.distributed.exits import forget_exit
from bestiary.distributed.failures import Failure
from bestiary.distributed.handles import RemoteBlock
from bestiary.distributed.pools import ReservedPool, ResourcePool, reserve
from bestiary.distributed.rank import Home, Opening, RankShell
from bestiary.distributed.supervisor import Pending, supervisor
from bestiary.distributed.tokens import (
    CLUSTER_VARIABLE,
    GROUP_VARIABLE,
    JOB_VARIABLE,
    TEMP_VARIABLE,
)
from bestiary.distributed.traffic import INLINE_BYTES, count_driver_bytes, estimate_bytes
from bestiary.errors import WorkerFailure

_INHERITED = (JOB_VARIABLE, CLUSTER_VARIABLE, TEMP_VARIABLE)
_CLOSE_S = 5.0


class WorkerGroup:
    """One process of a worker class on each device of a pool.

    Args:
        name: for messages, logs and records; need not be unique.
        pool: devices; a pool that was not reserved is reserved here and released by :meth:`close`.
        worker: ``package.module:Class``, built in each process as ``Class(args, seat)``.
        args: any value that pickles.
        env: more environment variables of the processes, set before anything is imported.
        log_dir: folder of ``<name>-rank<r>.log``.
        timeout_s: seconds in which a call must be answered, unless :meth:`submit` says otherwise.
        start_timeout_s: seconds in which all processes must have built their worker.

    Raises:
        PlacementError: if the pool cannot be had.
        WorkerFailure: if a process does not start; nothing is left behind then.
    """

    def __init__(
        self,
        name: str,
        pool: ResourcePool | ReservedPool,
        worker: str,
        args: Any,  # noqa: ANN401 - the worker's own
        *,
        log_dir: Path,
        env: Mapping[str, str] | None = None,
        timeout_s: float = 1800.0,
        start_timeout_s: float = 300.0,
    ) -> None:
        self.name = name
        self.timeout_s = timeout_s
        self.log_dir = Path(log_dir)
        self.failure: WorkerFailure | None = None
        self._token = secrets.token_hex(6)
        self._lock = threading.RLock()
        self._closed = False
        self._ready = False
        self._actors: list[Any] = []
        self._homes: list[Home] = []
        self._owned = isinstance(pool, ResourcePool)
        self._pool = reserve(pool) if isinstance(pool, ResourcePool) else pool
        try:
            self._start(worker, args, dict(env or {}), start_timeout_s)
        except BaseException:
            self.close()
            raise
        self._ready = True

    # ------------------------------------------------------------------ face

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self._pool.pool.size

    @property
    def homes(self) -> tuple[Home, ...]:
        """Machine and process of each rank."""
        return tuple(self._homes)

    def log_path(self, rank: int) -> Path:
        """File with everything that a rank printed."""
        return self.log_dir / f"{self.name}-rank{rank}.log"

    def call(self, method: str, per_rank: Sequence[tuple[Any, ...]]) -> list[RemoteBlock]:
        """Call a method that returns (block, report) on every rank; returns at once.

        Args:
            method: name of the worker's method.
            per_rank: the arguments of each rank.
        """
        with self._lock:
            pairs = self._fan_out("call_block", method, self._each(per_rank), returns=2)
            pending = self._watch(method, [answer for _, answer in pairs], None)
        return [
            RemoteBlock(tokens, answer, partial(pending.result, rank))
            for rank, (tokens, answer) in enumerate(pairs)
        ]

    def submit(
        self, method: str, per_rank: Sequence[tuple[Any, ...]], *, timeout_s: float | None = None
    ) -> Pending:
        """Call a method with plain results on every rank; returns at once."""
        with self._lock:
            refs = self._fan_out("call", method, self._each(per_rank), returns=1)
            return self._watch(method, refs, timeout_s)

    def run(self, method: str, *args: Any, timeout_s: float | None = None) -> list[Any]:  # noqa: ANN401
        """Call a method with the same arguments on every rank; waits and returns the results."""
        with self._lock:
            refs = self._fan_out("call", method, self._same(args), returns=1)
            pending = self._watch(method, refs, timeout_s)
        return pending.wait()

    def close(self) -> None:
        """End all processes and give the devices back; nothing is left, whatever state it was in.

        May be called again, and from another thread.
        """
        with self._lock:
            if self._closed:
                return
            self._closed = True
            # A rank that is at work could not answer: somebody gave up on it, as after Ctrl-C.
            busy = supervisor.forget(self)
            graceful = self._ready and self.failure is None and not busy
            try:
                end_ranks(self._actors, self._homes, self._token, _CLOSE_S if graceful else 0.0)
            finally:
                self._actors = []
                if self._owned:
                    self._pool.release()
                for rank in range(self.size):
                    forget_exit(self._exit_prefix(rank))

    def __enter__(self) -> "WorkerGroup":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------------ start

    def _start(self, worker: str, args: Any, env: dict[str, str], timeout_s: float) -> None:  # noqa: ANN401
        import ray

        shell = ray.remote(RankShell)
        runtime_env = {"env_vars": self._environment(env)}
        self._actors = [
            shell.options(
                max_restarts=0,
                max_concurrency=1,
                runtime_env=runtime_env,
                **self._pool.options(rank),
            ).remote()
            for rank in range(self.size)
        ]
        homes = self._setup("home", [()] * self.size, timeout_s)
        self._order(homes)
        loopback = len({home.node_id for home in self._homes}) == 1
        openings = [(self._opening(worker, rank, loopback),) for rank in range(self.size)]
        wanted = self._setup("open", openings, timeout_s)
        meet = None
        if any(wanted):
            ip = "127.0.0.1" if loopback else self._homes[0].ip
            port = self._setup("host_store", [(ip, timeout_s)], timeout_s)[0]
            meet = (ip, port)
        self._setup("build", [(args, meet, self.timeout_s)] * self.size, timeout_s)

    def _setup(self, step: str, args: Sequence[tuple[Any, ...]], timeout_s: float) -> list[Any]:
        """Call the shell itself on the first ``len(args)`` ranks and wait."""
        refs = [
            getattr(actor, step).remote(*a) for actor, a in zip(self._actors, args, strict=False)
        ]
        return self._watch(f"start ({step})", refs, timeout_s).wait()

    def _order(self, homes: Sequence[Home]) -> None:
        """Number the ranks so that those of one machine follow each other."""
        nodes = list(dict.fromkeys(home.node_id for home in homes))
        order = sorted(range(len(homes)), key=lambda i: nodes.index(homes[i].node_id))
        self._actors = [self._actors[i] for i in order]
        self._homes = [homes[i] for i in order]

    def _environment(self, env: Mapping[str, str]) -> dict[str, str]:
        threads = str(self._pool.pool.threads)
        inherited = {name: os.environ[name] for name in _INHERITED if name in os.environ}
        own = {
            GROUP_VARIABLE: self._token,
            "OMP_NUM_THREADS": threads,
            "MKL_NUM_THREADS": threads,
            "SPT_NOENV": "1",
        }
        return {**inherited, **own, **env}

    def _opening(self, worker: str, rank: int, loopback: bool) -> Opening:
        return Opening(
            target=worker,
            group=self.name,
            rank=rank,
            world=self.size,
            log_path=self.log_path(rank).absolute(),
            exit_prefix=self._exit_prefix(rank).absolute(),
            threads=self._pool.pool.threads,
            accelerator=self._pool.pool.kind == "cuda",
            loopback=loopback,
        )

    def _exit_prefix(self, rank: int) -> Path:
        return self.log_dir / f".{self.name}-{self._token}-rank{rank}.exit"

    # ------------------------------------------------------------------ calls

    def _each(self, per_rank: Sequence[tuple[Any, ...]]) -> list[Any]:
        if len(per_rank) != self.size:
            raise ValueError(
                f"group {self.name!r} has {self.size} ranks, arguments for {len(per_rank)} given"
            )
        count_driver_bytes(sum(estimate_bytes(args) for args in per_rank))
        return list(per_rank)

    def _same(self, args: tuple[Any, ...]) -> list[Any]:
        """The same arguments for each rank; big ones are put into the object store once."""
        import ray

        size_bytes = estimate_bytes(args)
        if size_bytes < INLINE_BYTES or self.size == 1:
            count_driver_bytes(size_bytes * self.size)
            return [args] * self.size
        count_driver_bytes(size_bytes)
        return [ray.put(args)] * self.size

    def _fan_out(self, shell_method: str, method: str, args: list[Any], returns: int) -> list[Any]:
        """Submit to all ranks; the caller holds the lock, so all ranks see one order of calls."""
        if self.failure is not None:
            raise self.failure
        if self._closed:
            raise WorkerFailure(f"group {self.name!r} is closed, {method!r} cannot be called")
        supervisor.sweep()
        return [
            getattr(actor, shell_method).options(num_returns=returns).remote(method, a)
            for actor, a in zip(self._actors, args, strict=True)
        ]

    def _watch(self, method: str, refs: Sequence[Any], timeout_s: float | None) -> Pending:
        pending = Pending(self, method, refs, timeout_s or self.timeout_s)
        supervisor.add(pending)
        return pending

    # ------------------------------------------------------------------ for the supervisor

    def explain(self, rank: int, error: Exception, context: str) -> Failure:
        """Find out what happened to a rank whose call ended with ``error``."""
        return explain(self.name, rank, self._home(rank), error, context, *self._records(rank))

    def explain_hang(self, ranks: Sequence[int], what: str, context: str) -> Failure:
        """Describe ranks that did not answer in time."""
        first = ranks[0]
        home = self._home(first)
        return explain_hang(self.name, ranks, home, what, context, self._records(first)[0])

    def kill(self) -> None:
        """End every process of the group at once."""
        end_ranks(self._actors, self._homes, self._token, 0.0)

    def _home(self, rank: int) -> Home:
        return self._homes[rank] if rank < len(self._homes) else Home("", "?", "", 0)

    def _records(self, rank: int) -> tuple[Path, Path]:
        return self.log_path(rank).absolute(), self._exit_prefix(rank).absolute()
