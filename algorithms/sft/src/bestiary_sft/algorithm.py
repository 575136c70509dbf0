"""Supervised fine-tuning in two functions."""

from bestiary import Algorithm, Batch, Term
from bestiary_sft.options import SFTOptions


class SFT(Algorithm):
    """Maximum likelihood: L = −(1/N) Σ_t log π(y_t | x, y_<t) over the N target tokens.

    The end token is part of the target; prompt tokens carry no loss.
    """

    options: SFTOptions

    def collect(self, prompts: Batch) -> Batch:
        """The targets take the place of responses."""
        return prompts.with_response("target_ids")

    def learn(self, batch: Batch) -> dict[str, float]:
        """One optimizer step on the whole batch."""
        self.actor.update(batch, Term(self.loss))
        return self.metrics()
