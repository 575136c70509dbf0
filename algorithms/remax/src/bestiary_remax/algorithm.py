"""ReMax in two functions."""

from collections.abc import Mapping
from typing import Any

from bestiary import Algorithm, Batch, Term
from bestiary.kit import KLControl
from bestiary.protocols import PolicyHandle, ScoreHandle
from bestiary_remax.options import ReMaxOptions


class ReMax(Algorithm):
    """ReMax (arXiv:2310.10505): REINFORCE with the greedy response's reward as the baseline.

        g = E[ (r(x, a) − r(x, a_greedy)) Σ_t ∇ log π(a_t | x, a_<t) ]            (eq. 8)

    The greedy response is drawn in the same engine call as the samples and is not trained on.
    There is no critic, and with one update a batch no ratio.
    """

    options: ReMaxOptions
    reference: PolicyHandle
    reward: ScoreHandle

    def __init__(self, options: ReMaxOptions, seed: int) -> None:
        super().__init__(options, seed)
        self.kl = KLControl(options.kl)

    def collect(self, prompts: Batch) -> Batch:
        """Draw the samples and the baseline, score both."""
        batch = self.actor.generate(prompts, self.sampling)
        made = [self.reward.score(batch)]
        if self.options.kl.coef > 0:
            made.append(self.reference.logprobs(batch))
        return batch.join(*made)

    def learn(self, batch: Batch) -> dict[str, float]:
        """Compare with the baseline, then step."""
        o = self.options
        if o.kl_decay == "linear":
            self.kl.coef = o.kl.coef * max(0.0, 1.0 - (self.step - 1) / o.kl_steps)
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
