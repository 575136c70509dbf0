"""Continuous batching: a queue of samples, running rows, finished responses.

Everything that happens for each token is vectorised over the rows; Python loops run over
samples only when they start or finish.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from bestiary.engines.engine_api import Completion
from bestiary.engines.local.streams import uniforms
from bestiary.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from bestiary.engines.engine_api import Request
    from bestiary.engines.local.decoder import Decoder, Prefilled
    from bestiary.engines.local.sampling import Rules
    from bestiary.engines.local.stopping import StopTexts
    from bestiary.protocols import Sampling

_AHEAD = 8
"""Prompts that are read together at least, so that refilling does not read them one by one."""


@dataclass(frozen=True, slots=True)
class Work:
    """The samples of one call, ordered by distinct prompt; all columns are [S].

    Args:
        prompts: the distinct prompts.
        prompt: which of them each sample starts from.
        sampling: number of its sampling.
        key: uint64 key of its random stream.
        limit: response tokens at most.
        samplings: the distinct samplings.
        place: position of the sample in the order of the requests.
    """

    prompts: "list[NDArray[np.int64]]"
    prompt: "NDArray[np.int64]"
    sampling: "NDArray[np.int64]"
    key: "NDArray[np.uint64]"
    limit: "NDArray[np.int64]"
    samplings: "list[Sampling]"
    place: "NDArray[np.int64]"

    @classmethod
    def of(cls, requests: "Sequence[Request]") -> "Work":
        """Flatten requests; equal prompts are read once."""
        prompts: dict[bytes, int] = {}
        ids: list[NDArray[np.int64]] = []
        samplings: dict[Sampling, int] = {}
        rows: list[tuple[int, int, int, int]] = []
        for request in requests:
            tokens = np.ascontiguousarray(request.prompt_ids, dtype=np.int64)
            number = prompts.setdefault(tokens.tobytes(), len(prompts))
            if number == len(ids):
                ids.append(tokens)
            for sampling, keys in zip(request.samplings, request.keys, strict=True):
                kind = samplings.setdefault(sampling, len(samplings))
                rows += [(number, kind, int(key), sampling.max_tokens) for key in keys]
        prompt = np.array([r[0] for r in rows], dtype=np.int64)
        order = np.argsort(prompt, kind="stable")
        return cls(
            prompts=ids,
            prompt=prompt[order],
            sampling=np.array([r[1] for r in rows], dtype=np.int64)[order],
            key=np.array([r[2] for r in rows], dtype=np.uint64)[order],
            limit=np.array([r[3] for r in rows], dtype=np.int64)[order],
            samplings=list(samplings),
            place=order,
        )

    def longest(self) -> int:
        """Tokens of the longest sample, prompt and response, at most."""
        lengths = np.array([len(p) for p in self.prompts], dtype=np.int64)
        return int((lengths[self.prompt] + self.limit).max(initial=0))


class Rollout:
    """One call of ``generate``.

    Args:
        decoder: with room reserved for ``slots`` rows.
        work: what to draw.
        rules: how to draw it.
        slots: rows that run at once at most.
        prefill_tokens: padded prompt tokens read at once at most; 1 reads prompts one by one.
        ends: [V] True for end tokens.
        stops: finder of stop texts, None when no sampling has any.
        version: of the policy.
    """

    def __init__(
        self,
        decoder: "Decoder",
        work: Work,
        rules: "Rules",
        *,
        slots: int,
        prefill_tokens: int,
        ends: "NDArray[np.bool_]",
        stops: "StopTexts | None",
        version: int,
    ) -> None:
        self.decoder, self.work, self.rules = decoder, work, rules
        self.slots, self.prefill_tokens, self.version = slots, prefill_tokens, version
        self.ends, self.stops = ends, stops
        self.n = 0
        self.waiting = 0
        """First sample that has not started."""
        self.read = 0
        """First prompt that has not been read."""
        self.batch_of: list[tuple[Prefilled, int] | None] = [None] * len(work.prompts)
        self.tokens: Tensor | None = None
        self.sample = np.zeros(slots, dtype=np.int64)
        """[rows] which sample each row draws."""
        self.count = np.zeros(slots, dtype=np.int64)
        """[rows] response tokens drawn."""
        # Storage of a row stays where it is while rows are moved: ``store`` points to it.
        self.store = np.arange(slots, dtype=np.int64)
        longest = int(work.limit.max(initial=0))
        self.ids = np.zeros((slots, longest), dtype=np.int64)
        self.logprobs = np.zeros((slots, longest), dtype=np.float32)
        self.logprobs_full = self.logprobs
        if rules.filters.any():
            self.logprobs_full = np.zeros_like(self.logprobs)
        self.done: list[Completion | None] = [None] * len(work.prompt)

    def run(self) -> list[Completion]:
        """All completions, in the order of the requests."""
        total = len(self.work.prompt)
        while self.n or self.waiting < total:
            self._draw(self._next_logits())
            self._retire()
        done = [completion for completion in self.done if completion is not None]
        assert len(done) == total  # noqa: S101 - own invariant
        return done

    # ------------------------------------------------------------------ one step

    def _next_logits(self) -> "Tensor":
        """[n, V]: a step of the running rows, then the first logits of new ones."""
        parts = []
        if self.n:
            assert self.tokens is not None  # noqa: S101 - own invariant
            parts.append(self.decoder.step(self.tokens))
        free = min(self.slots - self.n, len(self.work.prompt) - self.waiting)
        if free:
            parts += self._admit(free)
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _draw(self, logits: "Tensor") -> None:
        """Draw a token for each row and write it down."""
        n, work = self.n, self.work
        sample, count = self.sample[:n], self.count[:n]
        draw = self.rules.draw(logits, work.sampling[sample], uniforms(work.key[sample], count))
        self.tokens = draw.tokens
        logprobs = draw.logprobs.cpu().numpy()
        if not np.isfinite(logprobs).all():
            bad = int(sample[np.flatnonzero(~np.isfinite(logprobs))[0]])
            raise EngineError(
                f"logits of version {self.version} are not finite "
                f"(prompt {int(work.prompt[bad])} of the call, response token {int(count.max())})",
                hint="the weights hold NaN or infinity: look at grad_norm and the learning rate",
            )
        store = self.store[:n]
        self.ids[store, count] = draw.tokens.cpu().numpy()
        self.logprobs[store, count] = logprobs
        if draw.logprobs is not draw.logprobs_full:
            self.logprobs_full[store, count] = draw.logprobs_full.cpu().numpy()
        elif self.logprobs_full is not self.logprobs:
            self.logprobs_full[store, count] = logprobs
        count += 1

    def _retire(self) -> None:
        """Hand out finished responses and close the holes with the last rows."""
        n, work = self.n, self.work
        sample, count = self.sample[:n], self.count[:n]
        drawn = self.ids[self.store[:n], count - 1]
        ended = self.ends[drawn]
        if self.stops is not None:
            self._find_stops(drawn, ended)
        finished = ended | (count >= work.limit[sample])
        gone = np.flatnonzero(finished)
        if not len(gone):
            return
        for row in gone.tolist():
            self._complete(row, truncated=not ended[row])
        left = n - len(gone)
        holes = gone[gone < left]
        last = left + np.flatnonzero(~finished[left:])
        self.decoder.move(last, holes, left)
        self._fill(holes, last, left)
        self.n = left

    def _fill(self, holes: "NDArray[np.int64]", last: "NDArray[np.int64]", left: int) -> None:
        """Move the bookkeeping of rows; the storage of the finished ones becomes free."""
        assert self.tokens is not None  # noqa: S101 - own invariant
        self.sample[holes] = self.sample[last]
        self.count[holes] = self.count[last]
        self.store[holes], self.store[last] = self.store[last], self.store[holes].copy()
        if len(holes):
            device = self.tokens.device
            source, target = torch.from_numpy(last), torch.from_numpy(holes)
            self.tokens[target.to(device)] = self.tokens[source.to(device)]
        self.tokens = self.tokens[:left]

    def _find_stops(self, drawn: "NDArray[np.int64]", ended: "NDArray[np.bool_]") -> None:
        """Mark rows whose last token completed a stop text."""
        assert self.stops is not None  # noqa: S101 - own invariant
        kinds = self.work.sampling[self.sample[: self.n]]
        for number, sampling in enumerate(self.work.samplings):
            if not sampling.stop:
                continue
            table = self.stops.candidates(sampling.stop)
            for row in np.flatnonzero((kinds == number) & table[drawn] & ~ended).tolist():
                ids = self.ids[self.store[row], : self.count[row]]
                ended[row] = self.stops.found(ids, sampling.stop)

    def _complete(self, row: int, *, truncated: bool) -> None:
        """Copy a finished response out of its storage."""
        store, length = self.store[row], self.count[row]
        logprobs = self.logprobs[store, :length].copy()
        full = logprobs
        if self.logprobs_full is not self.logprobs:
            full = self.logprobs_full[store, :length].copy()
        self.done[self.work.place[self.sample[row]]] = Completion(
            ids=self.ids[store, :length].copy(),
            logprobs=logprobs,
            logprobs_full=full,
            truncated=truncated,
            version=self.version,
        )

    # ------------------------------------------------------------------ admission

    def _admit(self, free: int) -> "list[Tensor]":
        """Start ``free`` samples; returns their first logits, in row order."""
        new = np.arange(self.waiting, self.waiting + free)
        prompt = self.work.prompt[new]
        while self.read <= prompt[-1]:
            self._read_prompts(int(prompt[-1]))
        parts, start = [], 0
        while start < free:
            # Consecutive samples whose prompts were read together are placed together.
            first = self.batch_of[prompt[start]]
            assert first is not None  # noqa: S101 - own invariant
            batch, index, stop = first[0], [], start
            while stop < free:
                entry = self.batch_of[prompt[stop]]
                if entry is None or entry[0] is not batch:
                    break
                index.append(entry[1])
                stop += 1
            chosen = np.array(index, dtype=np.int64)
            self.decoder.place(batch, chosen, self.n + start)
            source = torch.from_numpy(chosen).to(batch.logits.device)
            parts.append(batch.logits.index_select(0, source))
            start = stop
        rows = slice(self.n, self.n + free)
        self.sample[rows], self.count[rows] = new, 0
        self.n, self.waiting = self.n + free, self.waiting + free
        over = len(self.work.prompts)
        if self.waiting < len(self.work.prompt):
            over = int(self.work.prompt[self.waiting])
        self.batch_of[int(prompt[0]) : over] = [None] * (over - int(prompt[0]))
        return parts

    def _read_prompts(self, needed: int) -> None:
        """Prefill the next prompts up to ``needed`` and a few ahead, within the budget."""
        prompts = self.work.prompts
        stop, longest = self.read, 0
        last = max(needed, self.read + _AHEAD - 1) if self.prefill_tokens > 1 else self.read
        while stop < len(prompts) and stop <= last:
            longest = max(longest, len(prompts[stop]))
            if stop > self.read and longest * (stop + 1 - self.read) > self.prefill_tokens:
                break
            stop += 1
        batch = self.decoder.prefill(prompts[self.read : stop])
        for i in range(self.read, stop):
            self.batch_of[i] = (batch, i - self.read)
        self.read = stop
