"""Tiny worker classes that ranks import by name."""

import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np

from bestiary.batch import Ragged, RowBlock
from bestiary.errors import DataError, Owner


class Arithmetic:
    """Blocks of numbers; no torch."""

    def __init__(self, args, seat):
        self.args = args
        self.seat = seat
        self.calls = []

    def where(self):
        return self.seat

    def environment(self, name):
        return os.environ.get(name)

    def make(self, rows, tokens):
        """``rows`` rows of ``tokens`` tokens, row i filled with rank * 100 + i."""
        values = self.seat.rank * 100 + np.arange(rows)
        column = Ragged.from_rows([np.full(tokens, v, dtype=np.float64) for v in values])
        table = {"score": values.astype(np.float64), "text": np.array(["a"] * rows, dtype=object)}
        return RowBlock({"x": column}, table), {"tokens": rows * tokens}

    def total(self, handle):
        block = handle.get()
        return float(block.tokens["x"].values.sum()), bool(block.tokens["x"].values.flags.writeable)

    def square(self, handle):
        block = handle.get()
        x = block.tokens["x"]
        made = RowBlock({"y": Ragged(x.values**2, x.offsets)}, {"n": np.array(x.lengths)})
        return made, {"sum": float((x.values**2).sum())}

    def record(self, value):
        self.calls.append(value)
        return list(self.calls)

    def size_of(self, value):
        return len(value)

    def sleep(self, seconds):
        time.sleep(seconds)
        return self.seat.rank

    def step(self, number, victim, how):
        """Does nothing, except that the victim fails at step 3."""
        if number == 3 and self.seat.rank == victim:
            print(f"rank {victim} is about to fail by {how}")
            fail(how)
        if number == 3 and how != "upstream":
            time.sleep(0.2)
        return number

    def failing_block(self, how):
        fail(how)

    def no_block(self):
        return 3

    def unpicklable(self):
        return threading.Lock()

    def child(self):
        """Start a process that outlives its parent unless somebody ends it."""
        return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]).pid

    def close(self):
        if "closed" in (self.args or {}):
            with open(f"{self.args['closed']}-{self.seat.rank}", "w") as file:
                file.write("closed")


class Collective(Arithmetic):
    """Ranks that wait for each other."""

    needs_process_group = True

    def __init__(self, args, seat):
        import torch

        super().__init__(args, seat)
        self.torch = torch
        self.threads = torch.get_num_threads()

    def step(self, number, victim, how):
        """A collective in each step; the victim fails in step 3 while the others wait in it."""
        import torch.distributed as dist

        if number == 3 and self.seat.rank == victim:
            fail(how)
        x = self.torch.ones(4)
        if self.seat.world > 1:
            dist.all_reduce(x)
        return float(x[0])

    def reduce(self, values):
        from bestiary.distributed.collectives import reduce_over

        x = self.torch.tensor(values, dtype=self.torch.float32) * (self.seat.rank + 1)
        reduce = reduce_over(self.seat)
        return reduce.sum(x).tolist(), reduce.max(x).tolist(), str(reduce.sum(x).dtype)


class Broken:
    """Cannot be built on one rank."""

    def __init__(self, args, seat):
        if seat.rank == args:
            raise DataError("no such file", hint="make it", owner=Owner("p", "dist", "1"))


def fail(how):
    if how == "raise":
        raise ValueError("step 3 is one too many")
    if how == "data":
        raise DataError("bad rows", hint="look at row 7")
    if how == "leave":
        os._exit(5)
    if how == "hang":
        time.sleep(600)
    os.kill(os.getpid(), getattr(signal, how))
    time.sleep(600)
