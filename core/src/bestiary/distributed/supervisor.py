"""Waiting for workers: whoever waits for anything sees the first failure of everything."""

import threading
import time
from collections.abc import Sequence
from typing import Any, Protocol

from bestiary.distributed.failures import Failure, failure_error, root_cause
from bestiary.distributed.traffic import count_driver_bytes, estimate_bytes
from bestiary.errors import WorkerFailure

POLL_S = 0.5
"""Longest time between two looks at clocks and at what other threads found."""

SETTLE_S = {"signal": 0.3, "exit": 0.3, "lost": 0.3, "raised": 0.5}
"""How long to look for a better explanation once a failure of this kind is known."""
SETTLE_ECHO_S = 8.0
"""The same where the failure is the echo of another one, which will be reported soon."""


class Watched(Protocol):
    """What the supervisor needs of a group of processes."""

    name: str
    failure: WorkerFailure | None

    def explain(self, rank: int, error: Exception, context: str) -> Failure:
        """Find out what happened to a rank whose call ended with ``error``."""
        ...

    def explain_hang(self, ranks: Sequence[int], what: str, context: str) -> Failure:
        """Describe ranks that did not answer in time."""
        ...

    def kill(self) -> None:
        """End every process of the group at once."""
        ...


Found = tuple[Watched, Failure]


class Pending:
    """One fan-out on its way: a reference for each rank, then its answer.

    Made by a group's ``submit``; results are kept until the object is dropped.
    """

    def __init__(self, group: Watched, method: str, refs: Sequence[Any], timeout_s: float) -> None:
        self.group = group
        self.method = method
        self.refs = list(refs)
        self.timeout_s = timeout_s
        self.context = supervisor.context_text()
        self.answers: dict[int, Any] = {}
        self.clock_from = time.monotonic()

    @property
    def waiting(self) -> list[int]:
        """Ranks that have not answered."""
        return [rank for rank in range(len(self.refs)) if rank not in self.answers]

    def wait(self) -> list[Any]:
        """Wait for every rank; returns the results in the order of ranks."""
        supervisor.wait(self, range(len(self.refs)))
        return [self.answers[rank] for rank in range(len(self.refs))]

    def result(self, rank: int) -> Any:  # noqa: ANN401 - the worker's own
        """Wait for one rank and return its result."""
        supervisor.wait(self, (rank,))
        return self.answers[rank]


class Supervisor:
    """All fan-outs of this process that have not been answered by all their ranks.

    Threads may wait at the same time. The lock guards the list and the answers, never a wait.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._pending: list[Pending] = []
        self._context: dict[str, object] = {}

    # ------------------------------------------------------------------ context

    def set_context(self, **context: object) -> None:
        """Name what is being done, as in ``set_context(step=3)``; goes into later failures."""
        self._context = dict(context)

    def context_text(self) -> str:
        """``at step 3``, or an empty text."""
        parts = [f"{name} {value}" for name, value in self._context.items()]
        return f"at {', '.join(parts)}" if parts else ""

    # ------------------------------------------------------------------ life of a call

    def add(self, pending: Pending) -> None:
        """Watch a fan-out that was just submitted."""
        with self._lock:
            self._pending.append(pending)

    def forget(self, group: Watched) -> bool:
        """Stop watching the calls of a group; returns whether it still had unanswered ones."""
        import ray

        with self._lock:
            refs = [p.refs[rank] for p in self._pending if p.group is group for rank in p.waiting]
            self._pending = [p for p in self._pending if p.group is not group]
        if not refs or not ray.is_initialized():
            return False
        ready, _ = ray.wait(refs, num_returns=len(refs), timeout=0)
        return len(ready) < len(refs)

    def sweep(self) -> None:
        """Take the answers that are there, without waiting; raises a failure that is there."""
        with self._lock:
            if not self._pending:
                return
        failures: list[Found] = []
        while self._look(0.0, failures):
            pass
        if failures:
            raise self._fail(failures)

    def wait(self, pending: Pending, ranks: Sequence[int]) -> None:
        """Wait until these ranks of a fan-out have answered.

        Raises:
            WorkerFailure: for the first failure anywhere, or ranks that do not answer in time.
        """
        while any(rank not in pending.answers for rank in ranks):
            if pending.group.failure is not None:
                raise pending.group.failure
            self._still_watched(pending)
            failures: list[Found] = []
            self._look(POLL_S, failures)
            failures += self._late()
            if failures:
                raise self._fail(failures)

    def _still_watched(self, pending: Pending) -> None:
        with self._lock:
            if pending.waiting and pending not in self._pending:
                name, method = pending.group.name, pending.method
                raise WorkerFailure(f"group {name!r} was closed before {method!r} was answered")

    # ------------------------------------------------------------------ looking

    def _open_refs(self, failures: list[Found]) -> dict[Any, tuple[Pending, int]]:
        """References without an answer, except those of ranks that are known to have failed."""
        known = {(id(group), failure.rank) for group, failure in failures}
        with self._lock:
            return {
                p.refs[rank]: (p, rank)
                for p in self._pending
                for rank in p.waiting
                if (id(p.group), rank) not in known
            }

    def _look(self, timeout_s: float, failures: list[Found]) -> bool:
        """Wait for one answer and take all that are there; returns whether any came."""
        import ray

        open_refs = self._open_refs(failures)
        if not open_refs:
            time.sleep(min(timeout_s, 0.05))
            return False
        refs = list(open_refs)
        ready, _ = ray.wait(refs, num_returns=1, timeout=timeout_s)
        if ready:
            ready, _ = ray.wait(refs, num_returns=len(refs), timeout=0)
        for ref in ready:
            self._take(*open_refs[ref], failures)
        return bool(ready)

    def _take(self, pending: Pending, rank: int, failures: list[Found]) -> None:
        import ray
        from ray.exceptions import RayError

        group = pending.group
        if any(seen is group and failure.rank == rank for seen, failure in failures):
            return
        try:
            answer = ray.get(pending.refs[rank], timeout=60)
        except RayError as error:
            if group.failure is None:
                failures.append((group, group.explain(rank, error, pending.context)))
            return
        with self._lock:
            if rank in pending.answers:
                return
            count_driver_bytes(estimate_bytes(answer) + getattr(answer, "inline_bytes", 0))
            pending.answers[rank] = answer
            if not pending.waiting:
                self._done(pending)

    def _done(self, pending: Pending) -> None:
        """Drop an answered call; the clock of the next one in its group starts."""
        if pending in self._pending:
            self._pending.remove(pending)
        for other in self._pending:
            if other.group is pending.group:
                other.clock_from = max(other.clock_from, time.monotonic())
                return

    def _late(self) -> list[Found]:
        """Ranks that have not answered the oldest call of their group in time."""
        now, seen = time.monotonic(), set()
        late: list[Found] = []
        with self._lock:
            calls = list(self._pending)
        for call in calls:
            if id(call.group) in seen or call.group.failure is not None:
                continue
            seen.add(id(call.group))
            if now - call.clock_from > call.timeout_s:
                what = f"did not answer {call.method!r} within {call.timeout_s:g} s"
                failure = call.group.explain_hang(call.waiting, what, call.context)
                late.append((call.group, failure))
        return late

    # ------------------------------------------------------------------ failing

    def _fail(self, failures: list[Found]) -> WorkerFailure:
        """Look a little longer for the root, then end the groups at fault."""
        began = time.monotonic()
        while True:
            kind = root_cause([failure for _, failure in failures]).kind
            left = began + SETTLE_S.get(kind, SETTLE_ECHO_S) - time.monotonic()
            if left <= 0 or kind == "hung":
                break
            if not self._open_refs(failures):
                break
            self._look(min(left, 0.2), failures)
        for group, _ in failures:
            if group.failure is not None:  # another thread was faster
                return group.failure
        error = failure_error([failure for _, failure in failures])
        for group in {id(g): g for g, _ in failures}.values():
            group.failure = error
            group.kill()
            self.forget(group)
        return error


supervisor = Supervisor()
"""The one of this process."""

set_context = supervisor.set_context
"""Name what is being done, as in ``set_context(step=3)``; failures then say "at step 3"."""
