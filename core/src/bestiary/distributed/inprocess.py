"""A worker group of one rank in the controller's own process, without Ray."""

import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bestiary.distributed.failures import Failure, RankError, failure_error
from bestiary.distributed.handles import LocalBlock
from bestiary.distributed.rank import load_class, split_result
from bestiary.distributed.seat import Seat
from bestiary.distributed.supervisor import supervisor
from bestiary.errors import WorkerFailure


class Done:
    """Results that are there: the face of :class:`bestiary.distributed.supervisor.Pending`."""

    def __init__(self, results: Sequence[Any]) -> None:
        self._results = list(results)

    def wait(self) -> list[Any]:
        """The results in the order of ranks."""
        return list(self._results)

    def result(self, rank: int) -> Any:  # noqa: ANN401 - the worker's own
        """The result of one rank."""
        return self._results[rank]


class InProcessGroup:
    """The methods of a worker group, run here and now; for debuggers, notebooks and comparisons.

    Args:
        name: for messages.
        worker: ``package.module:Class``.
        args: as for the worker group.
        device: of the only rank.
    """

    def __init__(
        self,
        name: str,
        worker: str,
        args: Any,  # noqa: ANN401 - the worker's own
        *,
        device: str = "cpu",
    ) -> None:
        self.name = name
        self.failure: WorkerFailure | None = None
        self._closed = False
        self._worker: Any = None
        seat = Seat(0, 1, device, name, socket.gethostname(), os.getpid(), None)
        self._worker = self._guarded(lambda: load_class(worker)(args, seat))

    @property
    def size(self) -> int:
        """1."""
        return 1

    def log_path(self, rank: int) -> Path | None:
        """None: what it prints goes where this process prints."""
        return None

    def call(self, method: str, per_rank: Sequence[tuple[Any, ...]]) -> list[LocalBlock]:
        """Call a method that returns (block, report)."""
        (args,) = per_rank
        block, report = self._guarded(lambda: split_result(method, self._method(method)(*args)))
        return [LocalBlock(block, report)]

    def submit(
        self, method: str, per_rank: Sequence[tuple[Any, ...]], *, timeout_s: float | None = None
    ) -> Done:
        """Call a method with plain results; a time limit has no meaning here."""
        (args,) = per_rank
        return Done([self._guarded(lambda: self._method(method)(*args))])

    def run(self, method: str, *args: Any, timeout_s: float | None = None) -> list[Any]:  # noqa: ANN401
        """Call a method and return its result as that of the only rank."""
        return self.submit(method, [args], timeout_s=timeout_s).wait()

    def close(self) -> None:
        """Let the worker clean up; may be called again."""
        if self._closed:
            return
        self._closed = True
        worker, self._worker = self._worker, None
        if hasattr(worker, "close"):
            worker.close()

    def __enter__(self) -> "InProcessGroup":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _method(self, method: str) -> Any:  # noqa: ANN401 - a bound method
        if self._closed:
            raise WorkerFailure(f"group {self.name!r} is closed, {method!r} cannot be called")
        return getattr(self._worker, method)

    def _guarded(self, function: Any) -> Any:  # noqa: ANN401
        """Run; failures look like those of a worker process, and the group is dead after one."""
        if self.failure is not None:
            raise self.failure
        try:
            return function()
        except WorkerFailure:
            raise
        except Exception as error:
            described = RankError.of(error)
            failure = Failure(
                group=self.name,
                rank=0,
                host=socket.gethostname(),
                pid=os.getpid(),
                kind=described.kind,
                what=described.type_name,
                detail=described.message,
                trace=described.trace,
                context=supervisor.context_text(),
                original=described.original,
            )
            self.failure = failure_error([failure])
            raise self.failure from error
