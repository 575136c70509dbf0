"""A scorer whose scores have spans, and an estimator that reads them."""

from collections.abc import Sequence

import torch
from torch import Tensor

from bestiary import Score
from bestiary.batch import Rows
from bestiary.ops.returns import discounted_returns
from bestiary.protocols import Configured, Reduce, Sample


class RightCharacters(Configured):
    """1 for the exact answer; 1/n for each of the n characters of the answer that is in place.

    Spans count response tokens: right for tokenizers with one token a character.
    """

    spans = True

    def __call__(self, samples: Sequence[Sample]) -> list[Score]:
        """A score for each sample."""
        return [self._score(sample) for sample in samples]

    def _score(self, sample: Sample) -> Score:
        answer, said = sample.answer, sample.response
        spans = tuple(
            (i, i + 1, 1.0 / len(answer))
            for i in range(min(len(answer), sample.response_len, len(said)))
            if said[i] == answer[i]
        )
        return Score(float(said == answer), spans=spans)


class StepsToGo(Configured):
    """A_t = G_t − mean of G_t over the group, with G the token rewards to go."""

    def __call__(self, x: Rows, reduce: Reduce, **scalars: float) -> dict[str, Tensor]:
        """[B, T] from the token column that the spans made."""
        live_BT = x.mask & x["valid"].bool()[:, None]
        togo_BT = discounted_returns(x["token_rewards"].double(), live_BT)
        out_BT = torch.zeros_like(togo_BT)
        for group in sorted(set(x["group"].tolist())):
            rows_BT = (x["group"] == group)[:, None] & live_BT
            mean_T = (togo_BT * rows_BT).sum(0) / rows_BT.sum(0).clamp(min=1)
            out_BT = torch.where(rows_BT, togo_BT - mean_T, out_BT)
        return {"advantages": out_BT}
