"""Finding out, on the controller, what happened to a rank."""

import os
import signal
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bestiary.distributed.cluster import live_nodes
from bestiary.distributed.exits import ASKED, STACKS, read_exit
from bestiary.distributed.failures import Failure, Kind, RankError, tail
from bestiary.distributed.rank import Home

_WIDE_LINES, _WIDE_BYTES = 4000, 1 << 18
_REMOTE_S = 5.0
_STACKS_S = 1.0
_KILLED_HINT = (
    "signal 9 usually comes from the kernel's memory killer (see dmesg) or from a person; "
    "with too little memory, use fewer workers or smaller micro-batches"
)


def explain(
    group: str,
    rank: int,
    home: Home,
    error: Exception,
    context: str,
    log_path: Path,
    exit_prefix: Path,
) -> Failure:
    """What happened to a rank whose call ended with an exception."""
    raised = error if isinstance(error, RankError) else getattr(error, "cause", None)
    seen = Failure(
        group=group,
        rank=rank,
        host=home.host,
        pid=home.pid,
        kind="lost",
        what="",
        log_path=log_path,
        log_tail=_tail(home, log_path),
        context=context,
    )
    if isinstance(raised, RankError):
        asked = _signal_behind(raised, home, exit_prefix)
        if asked:
            return replace(seen, kind="signal", what=f"killed by signal {asked}")
        return replace(
            seen,
            kind=raised.kind,
            what=raised.type_name,
            detail=raised.message,
            trace=raised.trace,
            original=raised.original,
        )
    if isinstance(raised, Exception):  # raised by Ray around the call, as for what cannot pickle
        what, trace = type(raised).__name__, str(error)
        return replace(seen, kind="raised", what=what, detail=str(raised), trace=trace)
    kind, what, detail, hint = _cause_of_death(home, error, log_path, exit_prefix)
    return replace(seen, kind=kind, what=what, detail=detail, hint=hint)


def _signal_behind(raised: RankError, home: Home, exit_prefix: Path) -> int:
    """The signal that a Python handler turned into an exception; 0 for none."""
    if raised.type_name not in ("SystemExit", "KeyboardInterrupt") or not _is_here(home):
        return 0
    number, _ = read_exit(exit_prefix, "")
    return number if number in ASKED else 0


def _cause_of_death(
    home: Home, error: Exception, log_path: Path, exit_prefix: Path
) -> tuple[Kind, str, str, str]:
    """(kind, what, detail, hint) of a rank that is gone."""
    from ray.exceptions import ActorDiedError, RayActorError

    text = " ".join(str(error).split())
    if not isinstance(error, RayActorError):
        return "lost", f"failed with {type(error).__name__}", text[:300], ""
    if home.pid == 0:
        return "lost", "did not start", text[:300], "the cluster's own logs say more"
    if not _node_is_alive(home):
        return "lost", "was lost with its machine", "", "the machine or its network went down"
    if "Memory on the node" in text or "NODE_OUT_OF_MEMORY" in text:
        return "lost", "killed by Ray's memory monitor", text[:300], _KILLED_HINT
    if isinstance(error, ActorDiedError) and "ray.kill" in text:
        return "lost", "was ended by the controller", "", ""
    if not _is_here(home):
        number, status = _read_exit_there(home, log_path, exit_prefix)
    else:
        number, status = read_exit(exit_prefix, tail(log_path, _WIDE_LINES, _WIDE_BYTES))
    if number:
        hint = _KILLED_HINT if number == signal.SIGKILL else ""
        return "signal", f"killed by signal {number}", "", hint
    return "exit", f"exited with status {status}", "", "a worker must not leave by itself"


def explain_hang(
    group: str, ranks: Sequence[int], home: Home, what: str, context: str, log_path: Path
) -> Failure:
    """Ranks that did not answer; the first one is asked for its stacks, which its log shows."""
    first, *others = ranks
    also = f" (and {', '.join(f'rank {rank}' for rank in others)})" if others else ""
    if home.pid and _is_here(home):
        try:
            os.kill(home.pid, STACKS)
            time.sleep(_STACKS_S)
        except ProcessLookupError:
            pass
    return Failure(
        group=group,
        rank=first,
        host=home.host,
        pid=home.pid,
        kind="hung",
        what=f"{also} {what}".strip(),
        log_path=log_path,
        log_tail=_tail(home, log_path, lines=60),
        context=context,
        hint="raise timeout_s if the work simply takes longer",
    )


# --------------------------------------------------------------------------- other machines


def _is_here(home: Home) -> bool:
    import ray

    return bool(home.node_id == ray.get_runtime_context().get_node_id())


def _node_is_alive(home: Home) -> bool:
    return any(node["NodeID"] == home.node_id for node in live_nodes())


def _tail(home: Home, path: Path, lines: int = 20) -> str:
    if home.pid == 0:
        return ""
    if path.exists() or _is_here(home):
        return tail(path, lines)
    return str(_there(home, tail, path, lines) or "")


def _read_exit_there(home: Home, log_path: Path, prefix: Path) -> tuple[int, int | None]:
    log_tail = str(_there(home, tail, log_path, _WIDE_LINES, _WIDE_BYTES) or "")
    found = _there(home, read_exit, prefix, log_tail)
    return found if found is not None else (0, None)


def _there(home: Home, function: Any, *args: Any) -> Any:  # noqa: ANN401 - whatever it returns
    """Run a function on the machine of a rank; None where that does not work in time."""
    import ray
    from ray.exceptions import GetTimeoutError, RayError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    task = ray.remote(function).options(
        num_cpus=0,
        max_retries=0,
        scheduling_strategy=NodeAffinitySchedulingStrategy(home.node_id, soft=False),
    )
    try:
        return ray.get(task.remote(*args), timeout=_REMOTE_S)
    except (RayError, GetTimeoutError):
        return None
