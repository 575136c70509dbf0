"""A worker group whose ranks are plain objects of this process, and prompts to send to it."""

import numpy as np

from bestiary.batch import Batch, Column, Ragged, Ready, RowBlock, row_key
from bestiary.distributed.handles import LocalBlock
from bestiary.protocols import Stat
from bestiary.roles.model import Model
from bestiary.roles.policy import PolicyRole
from bestiary.roles.score import ScoreRole
from bestiary.roles.services import Services


class Rank:
    """Draws responses that can be computed from the prompt and the key, and records what it gets.

    A response is [prompt's first id, key mod 1000, 0, 1, …] with ``key % 4 + 1`` tokens;
    log-probabilities are minus the ids.
    """

    def __init__(self, empty=(), invalid=()):
        self.empty, self.invalid = empty, invalid
        self.updates, self.forwards, self.scored = [], [], []

    def generate(self, name, prompts, samplings, keys):
        ids = prompts.block().tokens["prompt_ids"]
        rows = [
            response(int(ids.row(p)[0]), int(key), self.empty)
            for p in range(len(ids))
            for key in keys[p]
        ]
        column = Ragged.from_rows(rows, dtype=np.int64)
        numbers = -column.values.astype(np.float32)
        lengths = column.lengths
        tokens = {
            "response_ids": column,
            "rollout_logprobs": Ragged(numbers, column.offsets),
            "rollout_logprobs_full": Ragged(numbers, column.offsets),
            "response_mask": Ragged(np.ones(len(numbers), dtype=bool), column.offsets),
            "turn_ids": Ragged(np.zeros(len(numbers), dtype=np.int16), column.offsets),
            "token_versions": Ragged(np.zeros(len(numbers), dtype=np.int32), column.offsets),
        }
        zeros = np.zeros(len(rows), dtype=np.int64)
        table = {
            "response_len": lengths, "loss_tokens": lengths, "version_min": zeros,
            "version_max": zeros, "truncated": zeros.astype(bool),
        }  # fmt: skip
        return RowBlock(tokens, table), {"seconds": 1.0}

    def forward(self, name, shipment, micro, outputs, temperature, adapter="on"):
        block = shipment.block()
        self.forwards.append((block, micro))
        ids = block.tokens["response_ids"]
        made = Ragged(ids.values.astype(np.float32) * 2, ids.offsets)
        tokens = dict.fromkeys([n for o, n in outputs.items() if o != "values_after"], made)
        after = [n for o, n in outputs.items() if o == "values_after"]
        table = dict.fromkeys(after, ids.lengths.astype(np.float64))
        return RowBlock(tokens, table), {"seconds": 2.0}

    def update(self, name, parts):
        self.updates.append([(part, part.rows.block()) for part in parts])
        return RowBlock({}), {"metrics": {"rows": Stat(len(parts), how="sum")}}

    def score(self, shipment):
        block = shipment.block()
        ids = block.tokens["response_ids"]
        self.scored.append(block)
        value = np.array([reward_of(ids.row(i)) for i in range(len(block))], dtype=np.float64)
        valid = np.array([not bad(ids.row(i), self.invalid) for i in range(len(block))], dtype=bool)
        parts = np.empty(len(block), dtype=object)
        parts[:] = [{} for _ in range(len(block))]
        table = {"reward": np.where(valid, value, 0.0), "valid": valid, "parts": parts}
        return RowBlock({}, table), {"seconds": 3.0}

    def decode(self, shipment):
        ids = shipment.block().tokens["response_ids"]
        text = np.empty(len(ids), dtype=object)
        text[:] = [" ".join(map(str, ids.row(i))) for i in range(len(ids))]
        return RowBlock({}, {"text": text}), {}


def response(prompt, key, empty=()):
    if key % 1000 in empty:
        return []
    return [prompt, key % 1000, *range(key % 4)]


def reward_of(ids):
    return float(ids[1] % 10) if len(ids) else 0.0


def bad(ids, invalid):
    return len(ids) > 1 and int(ids[1]) in invalid


class FakeGroup:
    """The face of a worker group."""

    def __init__(self, ranks):
        self.ranks = ranks

    @property
    def size(self):
        return len(self.ranks)

    def call(self, method, per_rank):
        assert len(per_rank) == self.size, "arguments for every rank"
        made = [getattr(r, method)(*a) for r, a in zip(self.ranks, per_rank, strict=True)]
        return [LocalBlock(*answer) for answer in made]

    def run(self, method, *args):
        return [getattr(rank, method)(*args) for rank in self.ranks]


class Bench:
    """Roles on ``world`` ranks."""

    def __init__(self, world, components, *, tokens_per_micro=24, **rank_options):
        self.ranks = [Rank(**rank_options) for _ in range(world)]
        self.group = FakeGroup(self.ranks)
        self.services = Services(7, components.options)
        model = Model("actor", self.group, tokens_per_micro)
        self.actor = PolicyRole("actor", model, self.services)
        self.reference = PolicyRole("reference", model, self.services, frozen=True)
        self.reward = ScoreRole("reward", self.group, self.services)
        self.cost = ScoreRole("cost", self.group, self.services)


def prompts(n, start=0):
    """n prompts of 1 to 3 tokens, each a group of its own."""
    ids = [[100 + p] * (1 + p % 3) for p in range(start, start + n)]
    block = RowBlock({"prompt_ids": Ragged.from_rows(ids, dtype=np.int64)})
    names = np.empty(n, dtype=object)
    names[:] = [f"p{p}" for p in range(start, start + n)]
    nothing = np.empty(n, dtype=object)
    nothing[:] = [{} for _ in range(n)]
    table = {
        "uid": names, "group_uid": names, "prompt": names, "answer": names, "extra": nothing,
        "prompt_len": np.array([len(i) for i in ids]), "draw": np.zeros(n, dtype=np.int64),
        "row_key": np.array([row_key(name) for name in names], dtype=np.uint64),
    }  # fmt: skip
    return Batch(table, {"prompt_ids": Column.of((Ready(block),), [n])})
