"""Rejection sampling in two functions."""

import numpy as np

from bestiary import Algorithm, Batch, Term
from bestiary.protocols import ScoreHandle
from bestiary_raft.options import RAFTOptions


class RAFT(Algorithm):
    """Reward-ranked fine-tuning (arXiv:2304.06767): imitate the best of n responses.

    L = −(1/N) Σ log π(t) over the tokens of the ``keep`` best responses of each prompt
    """

    options: RAFTOptions
    reward: ScoreHandle

    def collect(self, prompts: Batch) -> Batch:
        """Draw responses and score them."""
        batch = self.actor.generate(prompts, self.sampling)
        return batch.join(self.reward.score(batch))

    def learn(self, batch: Batch) -> dict[str, float]:
        """Imitate the best; a batch in which none is good enough makes no update."""
        o = self.options
        best = best_rows(batch, o.keep, o.threshold)
        for _ in range(o.epochs if len(best) else 0):
            self.actor.update(batch.take(best), Term(self.loss))
        return {**self.metrics(), "raft/kept": len(best) / max(len(batch), 1)}


def best_rows(batch: Batch, keep: int, threshold: float | None) -> np.ndarray:
    """The ``keep`` rows of each group with the highest valid reward; earlier ones among equals."""
    group = batch.group_index()
    live = batch["valid"].astype(bool) & batch["trainable"].astype(bool)
    reward = batch["reward"].astype(np.float64)
    if threshold is not None:
        live &= reward >= threshold
    rows: list[int] = []
    for g in range(int(group.max(initial=-1)) + 1):
        mine = np.flatnonzero((group == g) & live)
        rows += mine[np.argsort(-reward[mine], kind="stable")[:keep]].tolist()
    return np.array(sorted(rows), dtype=np.int64)
