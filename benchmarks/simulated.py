"""Worker groups that only answer: what is left of a step is the controller's own work."""

from typing import Any

import numpy as np

from bestiary.batch import Batch, Ragged, RowBlock, as_column, row_key
from bestiary.batch.derive import local
from bestiary.distributed.traffic import estimate_bytes
from bestiary.protocols import Stat


class Answered:
    """A block elsewhere: its table is here, its tokens never come."""

    is_reference = True

    def __init__(self, table: dict[str, Any]) -> None:
        self._table = table

    def get(self) -> RowBlock:
        raise RuntimeError("a token column was brought to the controller")

    def table(self) -> dict[str, Any]:
        return self._table

    def report(self) -> dict[str, Any]:
        return {"seconds": 0.0, "metrics": {"loss/clip": Stat(1.0, 1.0), "grad_norm": Stat(1.0)}}


class SimulatedGroup:
    """Answers each call at once with tables of the right size and no tokens.

    Attributes:
        calls: worker calls that were made.
        sent: bytes of their arguments.
        received: bytes of the tables that came back.
    """

    def __init__(self, size: int, response_len: int = 64) -> None:
        self.size = size
        self.length = response_len
        self.calls = self.sent = self.received = 0

    def call(self, method: str, per_rank: list[tuple[Any, ...]]) -> list[Answered]:
        self.calls += len(per_rank)
        self.sent += sum(estimate_bytes(args) for args in per_rank)
        handles = [Answered(self._table(method, args)) for args in per_rank]
        self.received += sum(estimate_bytes(h.table()) for h in handles)
        return handles

    def run(self, method: str, *args: Any) -> list[Any]:
        return [{"version": 0, "max_length": 0, "spans": False}] * self.size

    def _table(self, method: str, args: tuple[Any, ...]) -> dict[str, Any]:
        if method == "generate":
            n = args[3].size
            lengths = np.full(n, self.length, dtype=np.int64)
            zero = np.zeros(n, dtype=np.int64)
            return {"response_len": lengths, "loss_tokens": lengths,
                    "truncated": np.zeros(n, dtype=bool), "version_min": zero,
                    "version_max": zero}  # fmt: skip
        if method == "score":
            n = len(args[0].table["uid"])
            # Rewards that differ within a group, so that every group counts.
            reward = (np.arange(n) % 3).astype(float)
            parts = np.empty(n, dtype=object)
            parts[:] = [{} for _ in range(n)]
            return {"reward": reward, "valid": np.ones(n, dtype=bool), "parts": parts}
        if method == "forward" and "values_after" in args[3]:
            n = len(next(iter(args[1].columns.values())).row)
            return {args[3]["values_after"]: np.zeros(n)}
        return {}


def prompts(n: int, prompt_len: int = 16) -> Batch:
    """n prompts as a batch."""
    names = [f"p{i}" for i in range(n)]
    rows = Batch({
        "row_key": np.array([row_key("prompt", name) for name in names], dtype=np.uint64),
        "uid": as_column(names), "group_uid": as_column([f"{name}#0" for name in names]),
        "draw": np.zeros(n, dtype=np.int64),
        "prompt_len": np.full(n, prompt_len, dtype=np.int64),
        "prompt": as_column(["prompt"] * n), "answer": as_column(["answer"] * n),
        "extra": as_column([{} for _ in range(n)]),
    })  # fmt: skip
    lengths = np.full(n, prompt_len)
    ids = Ragged.from_lengths(np.zeros(n * prompt_len, dtype=np.int64), lengths)
    return local(rows, prompt_ids=ids)
