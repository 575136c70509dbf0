"""Roles of kind ``policy``: generation, log-probabilities and updates."""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from bestiary.batch import Batch, Column, row_key, ship
from bestiary.engines.local.streams import sample_key
from bestiary.errors import ConfigError
from bestiary.protocols import Sampling
from bestiary.roles.model import Model
from bestiary.roles.services import Services, spread
from bestiary.roles.trained import TrainedRole

GENERATED_TOKENS = (
    "response_ids",
    "response_mask",
    "turn_ids",
    "token_versions",
    "rollout_logprobs",
    "rollout_logprobs_full",
)
"""Token columns of a generation; one entry for each response token."""

GENERATED_TABLE = ("response_len", "loss_tokens", "truncated", "version_min", "version_max")
"""Sample columns of a generation that the engine knows, so they arrive with its answer."""


class PolicyRole(TrainedRole):
    """A language model under the name of a role.

    Args:
        model: the model that it is a view of.
        services: shared by the roles of the run.
        frozen: refuses updates.
        into: default name of the column that :meth:`logprobs` makes.
        purpose: part of the random streams, so that evaluation never meets training's streams.
    """

    def __init__(
        self,
        name: str,
        model: Model,
        services: Services,
        *,
        frozen: bool = False,
        purpose: str = "train",
        temperature: float = 1.0,
        adapter: Literal["on", "off"] = "on",
    ) -> None:
        super().__init__(
            name, model, services, frozen=frozen, temperature=temperature, adapter=adapter
        )
        self.purpose = purpose

    def for_purpose(self, purpose: str) -> "PolicyRole":
        """The same role with random streams of its own."""
        return PolicyRole(
            self.name,
            self.model,
            self.services,
            frozen=self.frozen,
            purpose=purpose,
            temperature=self.temperature,
            adapter=self.adapter,
        )

    def generate(self, prompts: Batch, sampling: Sampling | Sequence[Sampling]) -> Batch:
        """Draw responses for each prompt; returns at once.

        Rows come in the order of the prompts, and for each prompt in that of the samplings. A
        prompt with all its rows goes to one rank, where its prefix is computed once.
        """
        samplings = (sampling,) if isinstance(sampling, Sampling) else tuple(sampling)
        if len({s.tag for s in samplings}) != len(samplings):
            raise ConfigError(
                f"samplings of one call need different tags, got {[s.tag for s in samplings]}"
            )
        each = sum(s.n for s in samplings)
        longest = int(prompts["prompt_len"].max(initial=0)) + max(s.max_tokens for s in samplings)
        if self.model.max_length and longest > self.model.max_length:
            raise ConfigError(
                f"a prompt with its response may reach {longest} tokens, but model "
                f"{self.model.name!r} takes {self.model.max_length}",
                hint="lower the responses' limit (max_tokens) or the prompts' "
                "(model.max_prompt_tokens)",
            )
        table, keys = self._rows(prompts, samplings)
        cost = prompts["prompt_len"] + sum(s.n * s.max_tokens for s in samplings)
        runs = spread(cost, self.model.group.size)
        handles = self.model.group.call(
            "generate",
            [
                (self.model.name, ship(prompts, run, ["prompt_ids"]), samplings, keys[run])
                for run in runs
            ],
        )
        self.services.ledger.note("rollout" if self.purpose == "train" else self.purpose, handles)
        column = Column.of(handles, [len(run) * each for run in runs])
        repeated = np.repeat(np.arange(len(prompts)), each)
        rows = prompts.without("target_ids", "rejected_ids").take(repeated).with_columns(**table)
        return Batch(
            rows.sample_columns(),
            {**rows.columns, **dict.fromkeys(GENERATED_TOKENS, column)},
            dict.fromkeys(GENERATED_TABLE, column),
        )

    def _rows(
        self, prompts: Batch, samplings: tuple[Sampling, ...]
    ) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Sample columns of the rows to come, and [prompts, rows each] keys of their streams."""
        kinds = [(s, j) for s in samplings for j in range(s.n)]
        keys = np.empty((len(prompts), len(kinds)), dtype=np.uint64)
        rows = np.empty((len(prompts), len(kinds)), dtype=np.uint64)
        seed, purpose = self.services.seed, self.purpose
        names = zip(prompts["uid"], prompts["draw"], prompts["group_uid"], strict=True)
        for p, (uid, draw, group) in enumerate(names):
            for k, (s, j) in enumerate(kinds):
                keys[p, k] = sample_key(seed, f"{purpose}/{s.tag}", uid, int(draw), j, 0)
                rows[p, k] = row_key(group, s.tag, j)
        n = len(prompts)
        tags = np.empty(len(kinds), dtype=object)
        tags[:] = [s.tag for s, _ in kinds]
        table = {
            "row_key": rows.reshape(-1),
            "tag": np.tile(tags, n),
            "sample_index": np.tile(np.array([j for _, j in kinds], dtype=np.int64), n),
            "trainable": np.tile(np.array([s.trainable for s, _ in kinds]), n),
        }
        return table, keys

    def logprobs(self, batch: Batch, into: str = "", *, probs_squared: bool = False) -> Batch:
        """Log-probabilities of the responses under the current weights.

        With ``probs_squared`` also Σ_a π(a)² of each token's distribution.
        """
        into = into or ("ref_logprobs" if self.name == "reference" else f"{self.name}_logprobs")
        outputs = {"logprobs": into}
        if probs_squared:
            outputs["probs_squared"] = "probs_squared"
        return self._forward(batch, outputs)
