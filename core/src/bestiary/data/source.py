"""The prompts of a run: tokenised once, handed out by index, each hand-out counted."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from bestiary.batch import Batch, Column, Ragged, Ready, RowBlock
from bestiary.batch.batch import row_key
from bestiary.data.order import EpochOrder
from bestiary.data.overlong import Overlong, check_policy, fit
from bestiary.errors import CheckpointError, DataError
from bestiary.protocols import Problem

MESSAGES = "messages"
"""Key in the column ``extra``: the messages of a prompt that is a conversation, for scorers with
a chat template of their own."""

ChatTemplate = Literal["auto", "always", "never"]
Messages = Sequence[Mapping[str, str]]


class Encoder(Protocol):
    """What a source needs of a tokenizer (``bestiary.models.tokenizer.Tokenizer``)."""

    def render(self, prompt: str | Messages, chat_template: ChatTemplate = "auto") -> str:
        """The text of a prompt as the model sees it."""
        ...

    def encode_prompt(
        self, prompt: str | Messages, chat_template: ChatTemplate = "auto"
    ) -> list[int]:
        """Ids of a prompt."""
        ...

    def encode_target(self, text: str) -> list[int]:
        """Ids of a response to imitate, the end token included."""
        ...


@dataclass(frozen=True, slots=True)
class PromptCounts:
    """What became of the problems of a task."""

    given: int
    dropped: int
    cut: int


class PromptSource:
    """Prompts with their ids, in memory; what samplers draw from.

    Args:
        problems: of one split, with unique uids.
        tokenizer: makes the ids, once, here.
        seed: of the orders that samplers walk in.
        max_prompt: tokens of a prompt at most; 0 is no limit.
        overlong: what to do with longer ones.
        chat_template: as in ``Tokenizer.render``.

    Raises:
        DataError: for a repeated uid, an empty or overlong prompt, or when nothing is left.
    """

    def __init__(
        self,
        problems: Sequence[Problem],
        tokenizer: Encoder,
        *,
        seed: int = 0,
        max_prompt: int = 0,
        overlong: Overlong = "error",
        chat_template: ChatTemplate = "auto",
    ) -> None:
        check_policy(overlong)
        self.seed = seed
        self._as_chat = chat_template == "always"
        self._problems: list[Problem] = []
        self._texts: list[str] = []
        ids: list[list[int]] = []
        cuts = 0
        for row, problem in enumerate(problems):
            whole = tokenizer.encode_prompt(problem.prompt, chat_template)
            if not whole:
                raise DataError(f"prompt at row {row} (uid {problem.uid}) has no tokens")
            kept = fit(whole, max_prompt, overlong, row, problem.uid)
            if kept is None:
                continue
            cuts += len(kept) < len(whole)
            self._problems.append(problem)
            self._texts.append(tokenizer.render(problem.prompt, chat_template))
            ids.append(kept)
        self.counts = PromptCounts(len(problems), len(problems) - len(ids), cuts)
        self._check(max_prompt)
        self._prompt_ids = Ragged.from_rows(ids, dtype=np.int64)
        self._responses = {
            name: column
            for name, texts in (
                ("target_ids", [p.target for p in self._problems]),
                ("rejected_ids", [p.rejected for p in self._problems]),
            )
            if (column := self._encode(name, texts, tokenizer)) is not None
        }
        self._draws = np.zeros(len(ids), dtype=np.int64)

    def _check(self, max_prompt: int) -> None:
        if not self._problems:
            raise DataError(
                f"no prompt is left of {self.counts.given}: {self.counts.dropped} are over "
                f"{max_prompt} tokens",
                hint="raise the limit or check the task",
            )
        seen: dict[str, int] = {}
        for row, problem in enumerate(self._problems):
            if seen.setdefault(problem.uid, row) != row:
                raise DataError(
                    f"uid {problem.uid!r} names two prompts (rows {seen[problem.uid]} and {row})",
                    hint="uids must be unique within a split",
                )

    def _encode(
        self, name: str, targets: Sequence[str | None], tokenizer: Encoder
    ) -> Ragged | None:
        without = [i for i, target in enumerate(targets) if target is None]
        if len(without) == len(targets):
            return None
        what = name.removesuffix("_ids")
        if without:
            raise DataError(
                f"{len(without)} of {len(targets)} problems have no {what}, the first is "
                f"{self._problems[without[0]].uid!r}",
                hint=f"give all of them a {what}, or none",
            )
        rows = [tokenizer.encode_target(target) for target in targets if target is not None]
        return Ragged.from_rows(rows, dtype=np.int64)

    # ------------------------------------------------------------------ reading

    def __len__(self) -> int:
        return len(self._problems)

    @property
    def uids(self) -> list[str]:
        """The uid of each prompt."""
        return [problem.uid for problem in self._problems]

    @property
    def has_targets(self) -> bool:
        """Whether hand-outs have the token column ``target_ids``."""
        return "target_ids" in self._responses

    @property
    def has_pairs(self) -> bool:
        """Whether hand-outs have the token columns ``target_ids`` and ``rejected_ids``."""
        return set(self._responses) == {"target_ids", "rejected_ids"}

    @property
    def prompt_lengths(self) -> NDArray[np.int64]:
        """[n] tokens of each prompt."""
        return self._prompt_ids.lengths

    def order(self, *, shuffle: bool = True) -> EpochOrder:
        """A new walk over the prompts under this source's seed."""
        return EpochOrder(len(self), self.seed, shuffle=shuffle)

    # ------------------------------------------------------------------ handing out

    def hand_out(self, indices: Sequence[int] | NDArray[np.int64]) -> Batch:
        """The prompts at ``indices`` as a batch; counts one more draw for each of them.

        An index may come several times; its hand-outs are different groups.
        """
        index = np.asarray(indices, dtype=np.int64)
        if len(index) and (index.min() < 0 or index.max() >= len(self)):
            raise DataError(f"hand_out: index outside of 0..{len(self) - 1}")
        draws = np.zeros(len(index), dtype=np.int64)
        for place, i in enumerate(index):
            draws[place] = self._draws[i]
            self._draws[i] += 1
        return self._batch(index, draws)

    def peek(self, indices: Sequence[int] | NDArray[np.int64]) -> Batch:
        """The prompts at ``indices`` as draw 0, without counting: for evaluation."""
        index = np.asarray(indices, dtype=np.int64)
        return self._batch(index, np.zeros(len(index), dtype=np.int64))

    def _batch(self, index: NDArray[np.int64], draws: NDArray[np.int64]) -> Batch:
        chosen = [self._problems[i] for i in index]
        groups = [f"{p.uid}#{draw}" for p, draw in zip(chosen, draws, strict=True)]
        tokens = {"prompt_ids": self._prompt_ids.take(index)}
        tokens |= {name: ids.take(index) for name, ids in self._responses.items()}
        table: dict[str, NDArray[Any]] = {
            "row_key": np.array([row_key("prompt", group) for group in groups], dtype=np.uint64),
            "uid": _objects([problem.uid for problem in chosen]),
            "group_uid": _objects(groups),
            "draw": draws,
            "prompt_len": tokens["prompt_ids"].lengths,
            "prompt": _objects([self._texts[i] for i in index]),
            "answer": _objects([problem.answer for problem in chosen]),
            "extra": _objects([self._extra(problem) for problem in chosen]),
        }
        column = Column.of((Ready(RowBlock(tokens)),), (len(index),))
        return Batch(table, dict.fromkeys(tokens, column))

    def _extra(self, problem: Problem) -> dict[str, Any]:
        prompt = problem.prompt
        if isinstance(prompt, str):
            if not self._as_chat:
                return dict(problem.extra)
            prompt = ({"role": "user", "content": prompt},)
        return {MESSAGES: [dict(message) for message in prompt], **problem.extra}

    # ------------------------------------------------------------------ state

    def digest(self) -> str:
        """Names the prompts of this source and their ids."""
        digest = blake2b(digest_size=8)
        digest.update("\x1f".join(self.uids).encode())
        digest.update(self._prompt_ids.values.tobytes())
        return digest.hexdigest()

    def state_dict(self) -> dict[str, Any]:
        """The draws so far: the smallest count, and what single prompts have above it."""
        base = int(self._draws.min())
        above = np.flatnonzero(self._draws > base)
        more = {str(i): int(self._draws[i] - base) for i in above}
        return {"digest": self.digest(), "base": base, "more": more}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from saved counts.

        Raises:
            CheckpointError: if the state belongs to other prompts or another tokenizer.
        """
        if state["digest"] != self.digest():
            raise CheckpointError(
                f"the checkpoint was made with other prompts (digest {state['digest']}, "
                f"here {self.digest()})",
                hint="resume with the same task, options and tokenizer",
            )
        self._draws[:] = int(state["base"])
        for i, count in state["more"].items():
            self._draws[int(i)] += int(count)


def _objects(values: Sequence[Any]) -> NDArray[Any]:
    out = np.empty(len(values), dtype=object)
    out[:] = values
    return out
