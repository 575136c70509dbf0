"""An algorithm, REINFORCE, and its estimator, each reward against the median of its group."""

import torch

from bestiary import Algorithm, Batch, Term
from bestiary.batch import Rows
from bestiary.protocols import Configured, Reduce, ScoreHandle


class Reinforce(Algorithm):
    """L = −A_i log π(y_i): on-policy the clipped surrogate has exactly this gradient."""

    reward: ScoreHandle

    def collect(self, prompts: Batch) -> Batch:
        """Draw the responses and score them."""
        batch = self.actor.generate(prompts, self.sampling)
        return batch.join(self.reward.score(batch))

    def learn(self, batch: Batch) -> dict[str, float]:
        """One optimizer step on advantages from the chosen estimator."""
        self.actor.update(batch.join(self.advantage(batch)).trainable(), Term(self.loss))
        return self.metrics()


class Median(Configured):
    """A_i = r_i − median(r of the group); invalid samples stay out of it and get 0."""

    def __call__(self, x: Rows, reduce: Reduce, **scalars: float) -> dict[str, torch.Tensor]:
        """[B] float64 from the sample columns ``reward``, ``group`` and ``valid``."""
        reward_B, valid_B = x["reward"].double(), x["valid"].bool()
        out_B = torch.zeros_like(reward_B)
        for group in set(x["group"][valid_B].tolist()):
            rows_B = valid_B & (x["group"] == group)
            out_B[rows_B] = reward_B[rows_B] - reward_B[rows_B].quantile(0.5)
        return {"advantages": out_B}
