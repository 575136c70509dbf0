"""Run a function on several ranks of a gloo group, each a fork of the test's own process.

A fork starts in milliseconds because its parent has imported torch.
"""

import multiprocessing
import os
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any


def run_ranks(
    world: int,
    function: Callable[..., Any],
    *args: Any,  # noqa: ANN401 - the function's own
    timeout_s: float = 60.0,
) -> list[Any]:
    """``function(rank, world, *args)`` on every rank; the results by rank.

    The function may be a closure; what it returns must pickle (tensors as numpy arrays).

    Args:
        world: number of ranks. 1 runs in this process, without a group.
        function: what to run.
        args: its further arguments.
        timeout_s: after it the ranks are killed.

    Raises:
        AssertionError: with the traceback of the first rank that raised, or naming the ranks
            that did not end.
    """
    if world == 1:
        return [function(0, 1, *args)]
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        pipes, children = [], []
        for rank in range(world):
            ours, theirs = context.Pipe(duplex=False)
            child = context.Process(
                target=_child, args=(rank, world, Path(folder), theirs, function, args), daemon=True
            )
            child.start()
            theirs.close()
            pipes.append(ours)
            children.append(child)
        try:
            return [_receive(pipe, rank, timeout_s) for rank, pipe in enumerate(pipes)]
        finally:
            for child in children:
                child.join(1.0)
                if child.is_alive():
                    child.kill()
                    child.join()


def _receive(pipe: Any, rank: int, timeout_s: float) -> Any:  # noqa: ANN401
    if not pipe.poll(timeout_s):
        raise AssertionError(f"rank {rank} did not end within {timeout_s} s")
    try:
        fine, value = pipe.recv()
    except EOFError:
        raise AssertionError(f"rank {rank} died without a word") from None
    if not fine:
        raise AssertionError(f"rank {rank} raised\n{value}")
    return value


def _child(
    rank: int,
    world: int,
    folder: Path,
    pipe: Any,  # noqa: ANN401 - a connection
    function: Callable[..., Any],
    args: tuple[Any, ...],
) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    try:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{folder / 'store'}",
            rank=rank,
            world_size=world,
            timeout=timedelta(seconds=30),
        )
        pipe.send((True, function(rank, world, *args)))
        dist.barrier()
    except BaseException:
        pipe.send((False, traceback.format_exc()))
    finally:
        pipe.close()
        # Forked interpreters must not run the parent's exit handlers.
        os._exit(0)
