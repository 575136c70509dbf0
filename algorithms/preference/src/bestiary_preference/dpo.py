"""DPO, on given pairs and on the policy's own, in two functions each."""

import numpy as np

from bestiary import Algorithm, Batch, Term
from bestiary.batch import preference_pairs
from bestiary.protocols import PolicyHandle, ScoreHandle
from bestiary_preference.options import DPOOptions, OnlineDPOOptions


class DPO(Algorithm):
    """Direct preference optimisation (arXiv:2305.18290).

    L = −log σ(β·[log π(y⁺)/π_ref(y⁺) − log π(y⁻)/π_ref(y⁻)])                     (eq. 7)
    """

    options: DPOOptions
    reference: PolicyHandle
    reward: ScoreHandle

    def collect(self, prompts: Batch) -> Batch:
        """The pairs with the reference's log-probabilities."""
        pairs = preference_pairs(prompts)
        return pairs.join(self.reference.logprobs(pairs))

    def learn(self, batch: Batch) -> dict[str, float]:
        """One optimizer step on the pairs."""
        self.actor.update(batch, Term(self.loss))
        return self.metrics()


class OnlineDPO(Algorithm):
    """DPO whose pairs are the best and the worst of the policy's responses (arXiv:2402.04792).

    A group whose valid rewards are all equal has no pair and is left out; a batch without any
    pair makes no update.
    """

    options: OnlineDPOOptions
    reference: PolicyHandle
    reward: ScoreHandle

    def collect(self, prompts: Batch) -> Batch:
        """Draw responses, score them, and keep the reference's log-probabilities."""
        batch = self.actor.generate(prompts, self.sampling)
        return batch.join(self.reward.score(batch), self.reference.logprobs(batch))

    def learn(self, batch: Batch) -> dict[str, float]:
        """Choose the pairs, then one optimizer step on them."""
        chosen, preferred = best_and_worst(batch)
        pairs = {"dpo/pairs": len(chosen) / 2}
        if len(chosen):
            rows = batch.take(chosen).with_columns(preferred=preferred)
            self.actor.update(rows, Term(self.loss))
        return {**self.metrics(), **pairs}


def best_and_worst(batch: Batch) -> tuple[np.ndarray, np.ndarray]:
    """Rows of the best and the worst response of each group, and 1 or 0 for each of them."""
    group = batch.group_index()
    live = batch["valid"].astype(bool) & batch["trainable"].astype(bool)
    reward = batch["reward"].astype(np.float64)
    rows: list[int] = []
    for g in range(int(group.max(initial=-1)) + 1):
        mine = np.flatnonzero((group == g) & live)
        if len(mine) and reward[mine].max() > reward[mine].min():
            rows += [int(mine[reward[mine].argmax()]), int(mine[reward[mine].argmin()])]
    return np.array(rows, dtype=np.int64), np.tile([1.0, 0.0], len(rows) // 2)
