"""Run a function on shards of rows as ranks would, in threads."""

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bestiary.batch import Rows
from bestiary.protocols import Stat
from bestiary.testing.watch import take

if TYPE_CHECKING:
    from torch import Tensor


class ShardReduce:
    """:class:`bestiary.protocols.Reduce` over threads, sums in the order of ranks.

    A rank that reduces more often than another breaks the barrier, and with it the test.

    Args:
        world: number of threads.
    """

    def __init__(self, world: int) -> None:
        self.barrier = threading.Barrier(world, timeout=5.0)
        self._parts: list[Any] = [None] * world
        self._place = threading.local()

    def enter(self, rank: int) -> None:
        """Say which rank this thread is."""
        self._place.rank = rank

    def _gather(self, x: "Tensor") -> "list[Tensor]":
        self._parts[self._place.rank] = x.double()
        self.barrier.wait()
        parts = list(self._parts)
        self.barrier.wait()
        return parts

    def sum(self, x: "Tensor") -> "Tensor":
        """The elementwise sum over the threads."""
        import torch

        return torch.stack(self._gather(x)).sum(0).to(x.dtype)

    def max(self, x: "Tensor") -> "Tensor":
        """The elementwise maximum over the threads."""
        import torch

        return torch.stack(self._gather(x)).amax(0).to(x.dtype)


def on_shards(
    call: Callable[[Rows, Any], Mapping[str, Any]], rows: Rows, shards: "Sequence[Tensor]"
) -> dict[str, Any]:
    """Call on each shard in a thread of its own; columns are put together, statistics added."""
    import torch

    reduce = ShardReduce(len(shards))
    found: list[Mapping[str, Any]] = [{} for _ in shards]
    failed: list[BaseException] = []

    def run(rank: int) -> None:
        reduce.enter(rank)
        try:
            found[rank] = call(take(rows, shards[rank]), reduce)
        except BaseException as error:
            failed.append(error)
            reduce.barrier.abort()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(len(shards))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        broken = [e for e in failed if not isinstance(e, threading.BrokenBarrierError)]
        if broken:
            raise broken[0]
        raise AssertionError("ranks reduce a different number of times")
    out: dict[str, Any] = {}
    for name, first in found[0].items():
        if isinstance(first, Stat):
            total = first
            for other in found[1:]:
                total = total + other[name]
            out[name] = total
            continue
        out[name] = torch.zeros((rows.size, *first.shape[1:]), dtype=first.dtype)
        for rank, index in enumerate(shards):
            out[name][index] = found[rank][name]
    return out
