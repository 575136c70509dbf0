"""REINFORCE in two functions."""

from collections.abc import Mapping
from typing import Any

from bestiary import Algorithm, Batch, Term
from bestiary.kit import KLControl
from bestiary.protocols import PolicyHandle, ScoreHandle
from bestiary_reinforce.options import ReinforceOptions


class Reinforce(Algorithm):
    """REINFORCE (Williams 1992): L = −Σ_t w·A_t·log π(t), A from the chosen estimator.

    Its members differ in the estimator alone: returns to go, leave-one-out means, whitened
    returns with the KL to go, optimal baselines.
    """

    options: ReinforceOptions
    reference: PolicyHandle
    reward: ScoreHandle

    def __init__(self, options: ReinforceOptions, seed: int) -> None:
        super().__init__(options, seed)
        self.kl = KLControl(options.kl)

    def collect(self, prompts: Batch) -> Batch:
        """Draw responses, score them, and keep the reference's log-probabilities."""
        batch = self.actor.generate(prompts, self.sampling)
        made = [self.reward.score(batch)]
        if self.options.kl.coef > 0:
            made.append(self.reference.logprobs(batch))
        return batch.join(*made)

    def learn(self, batch: Batch) -> dict[str, float]:
        """Advantages, then steps."""
        o = self.options
        several = o.epochs * o.minibatches > 1
        batch = self.proximal(batch, always=several or self.kl.in_reward)
        batch = batch.join(self.advantage(batch, **self.kl.scalars()))
        entropy = (Term("entropy", coef=o.entropy_coef),) if o.entropy_coef else ()
        terms = (Term(self.loss), *self.kl.terms(), *entropy)
        cut = batch.minibatches(o.minibatches, epochs=o.epochs, seed=self.seed + self.step)
        for minibatch in cut:
            self.actor.update(minibatch, *terms)
        self.learned = batch
        metrics = self.metrics()
        return {**metrics, **self.kl.step(metrics, len(batch))}

    def state_dict(self) -> dict[str, Any]:
        """The KL coefficient."""
        return {"kl": self.kl.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved coefficient."""
        self.kl.load_state_dict(state["kl"])
