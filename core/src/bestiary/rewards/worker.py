"""The worker that hosts a reward: decodes responses, calls the function, returns columns."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from bestiary.batch import Ragged, RowBlock, Shipment
from bestiary.errors import RewardError
from bestiary.models.tokenizer import Decoder
from bestiary.protocols import ComponentRef, Sample, Stat
from bestiary.rewards.calling import DirectScorer, Scorer
from bestiary.rewards.check import Checked
from bestiary.rewards.loading import LoadedReward, load_reward

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True, slots=True)
class RewardArgs:
    """Plain values that a worker is built from.

    Args:
        reward: which one, with its options.
        model: folder of the model whose tokens the responses are.
        limit_s: seconds for one batch; 0 is no limit.
        role: name of the role, the first part of its metrics.
        function: the function itself, in place of a registered reward.
    """

    reward: ComponentRef
    model: str
    limit_s: float = 600.0
    role: str = "reward"
    function: Any = None


class Seat(Protocol):
    """The place of this process in its worker group."""

    @property
    def rank(self) -> int:
        """0 … world − 1."""
        ...


class RewardWorker:
    """Scores the rows that it is sent; hosted by a worker group, or used as it is.

    Args:
        args: what to host.
        seat: the rank of this process.
    """

    needs_process_group = False

    def __init__(self, args: RewardArgs, seat: Seat | None = None) -> None:
        from bestiary.plugins.manager import load_plugins

        self.args = args
        self.seat = seat
        if args.function is None:
            self.reward = load_reward(args.reward, load_plugins())
        else:
            self.reward = LoadedReward(args.reward.name, args.function)
        self.decoder = Decoder(Path(args.model)) if args.model else None
        self.scorer: Scorer = DirectScorer(self.reward, args.limit_s)
        self.spans = bool(getattr(self.reward.function, "spans", False))

    def read_with(self, model: str) -> None:
        """Decode responses with the tokenizer of another model from now on."""
        self.decoder = Decoder(Path(model))

    def score_samples(self, samples: Sequence[Sample]) -> list[Checked]:
        """Score responses that are there as text."""
        return self.scorer(samples)

    def describe(self) -> dict[str, Any]:
        """What is hosted: name, owner and the content hash of a custom file."""
        owner = self.reward.owner
        return {
            "reward": self.reward.name,
            "owner": str(owner) if owner else "",
            "digest": self.reward.digest,
            "spans": self.spans,
        }

    def score(self, rows: RowBlock | Shipment) -> tuple[RowBlock, dict[str, Any]]:
        """Score rows.

        Args:
            rows: token column ``response_ids``; sample columns ``uid prompt answer extra
                truncated`` (``row_key`` is handed back where it is sent).

        Returns:
            (block, report). The block has the sample columns ``reward`` (0 where invalid),
            ``valid``, ``parts`` (a mapping for each sample) and ``reward_part/<name>`` (NaN where
            a sample lacks the part); where the reward declares ``spans``, also the token column
            ``token_rewards``. The report has ``seconds`` and ``metrics``.

        Raises:
            RewardError: for a score with spans of a reward that does not declare them.
        """
        start = time.perf_counter()
        block = rows.block() if isinstance(rows, Shipment) else rows
        samples = to_samples(block, self._decoder())
        scores = self.scorer(samples)
        if not self.spans and any(score.spans for score in scores):
            raise RewardError(
                f"reward {self.reward.name!r} gave rewards of spans without declaring them",
                hint="set `spans = True` on its class or function",
                owner=self.reward.owner,
            )
        lengths = [sample.response_len for sample in samples]
        columns = to_columns(scores, lengths, spans=self.spans)
        if "row_key" in block.table:
            columns = RowBlock(columns.tokens, {"row_key": block.table["row_key"], **columns.table})
        metrics = to_metrics(scores, self.args.role)
        return columns, {"seconds": time.perf_counter() - start, "metrics": metrics}

    def decode(self, rows: RowBlock | Shipment) -> tuple[RowBlock, dict[str, Any]]:
        """The responses of rows as the sample column ``text``: for records and people."""
        start = time.perf_counter()
        block = rows.block() if isinstance(rows, Shipment) else rows
        responses = block.tokens["response_ids"]
        text = np.empty(len(responses), dtype=object)
        decoder = self._decoder()
        text[:] = [decoder.decode(responses.row(i).tolist()) for i in range(len(responses))]
        return RowBlock({}, {"text": text}), {"seconds": time.perf_counter() - start}

    def _decoder(self) -> Decoder:
        if self.decoder is None:
            raise RewardError(f"reward {self.reward.name!r} was not told whose tokens it reads")
        return self.decoder

    def close(self) -> None:
        """Free what the scorer holds."""
        self.scorer.close()


def to_samples(block: RowBlock, decoder: Decoder) -> list[Sample]:
    """Rows as a reward sees them: text for reading, made from ids that stay as they are."""
    responses, table = block.tokens["response_ids"], block.table
    return [
        Sample(
            uid=str(table["uid"][i]),
            prompt=str(table["prompt"][i]),
            response=decoder.decode(responses.row(i).tolist()),
            answer=str(table["answer"][i]),
            response_len=len(responses.row(i)),
            truncated=bool(table["truncated"][i]) if "truncated" in table else False,
            extra=table["extra"][i] if "extra" in table else {},
        )
        for i in range(len(block))
    ]


def to_columns(scores: Sequence[Checked], lengths: Sequence[int], *, spans: bool) -> RowBlock:
    """Scores as columns.

    Args:
        scores: of n samples.
        lengths: [n] response tokens of each.
        spans: make the token column ``token_rewards``.
    """
    table: dict[str, NDArray[Any]] = {
        "reward": np.array([score.value for score in scores], dtype=np.float64),
        "valid": np.array([score.valid for score in scores], dtype=bool),
        "parts": np.empty(len(scores), dtype=object),
    }
    table["parts"][:] = [dict(score.parts) for score in scores]
    for name in sorted({name for score in scores for name in score.parts}):
        values = [score.parts.get(name, float("nan")) for score in scores]
        table[f"reward_part/{name}"] = np.array(values, dtype=np.float64)
    if not spans:
        return RowBlock({}, table)
    rewards = [np.zeros(length, dtype=np.float32) for length in lengths]
    for row, score in zip(rewards, scores, strict=True):
        for _, end, value in score.spans:
            row[end - 1] += value  # a step's reward falls on its last token
    return RowBlock({"token_rewards": Ragged.from_rows(rewards, dtype=np.float32)}, table)


def to_metrics(scores: Sequence[Checked], role: str) -> dict[str, Stat]:
    """Statistics that add up over workers: share of invalid samples, mean of each part."""
    metrics = {
        f"{role}/invalid": Stat(float(sum(not score.valid for score in scores)), len(scores))
    }
    for score in scores:
        for name, value in score.parts.items():
            key = f"{role}/{name}"
            metrics[key] = metrics.get(key, Stat(0.0, 0.0)) + Stat(value)
    return metrics
