"""Safe RLHF in two functions."""

from collections.abc import Mapping
from typing import Any

from bestiary import Algorithm, Batch, Term
from bestiary.kit import KLControl
from bestiary.protocols import PolicyHandle, ScoreHandle, ValueHandle
from bestiary_safe_rlhf.multiplier import Multiplier
from bestiary_safe_rlhf.options import SafeRLHFOptions


class SafeRLHF(Algorithm):
    """PPO-Lagrangian (arXiv:2310.12773): the most reward at a mean cost of at most d.

        max_θ min_{λ ≥ 0}  J_R(θ) − λ·(J_C(θ) − d)                                 (eq. 9, 10)

    Reward and cost have a critic each. The multiplier moves once a step, before the actor, on
    the mean of the last raw costs; advantages are combined before the clip.
    """

    options: SafeRLHFOptions
    critic: ValueHandle
    cost_critic: ValueHandle
    reference: PolicyHandle
    reward: ScoreHandle
    cost: ScoreHandle

    def __init__(self, options: SafeRLHFOptions, seed: int) -> None:
        super().__init__(options, seed)
        self.kl = KLControl(options.kl)
        self.multiplier = Multiplier(options)

    def collect(self, prompts: Batch) -> Batch:
        """Draw responses, score reward and cost, and keep the reference's log-probabilities."""
        batch = self.actor.generate(prompts, self.sampling)
        made = [self.reward.score(batch), self.cost.score(batch)]
        if self.options.kl.coef > 0:
            made.append(self.reference.logprobs(batch))
        return batch.join(*made)

    def learn(self, batch: Batch) -> dict[str, float]:
        """Move the multiplier, then actor and critics under the combined advantages."""
        o = self.options
        counted = batch["valid_cost"].astype(bool) & batch["trainable"].astype(bool)
        costs = batch["cost"][counted]
        moved = self.multiplier.step(costs.tolist(), self.step)
        batch = self.proximal(batch, always=True).join(
            self.critic.values(batch), self.cost_critic.values(batch, into="cost_values")
        )
        lam = self.multiplier.value
        batch = batch.join(self.advantage(batch, lam=lam, **self.kl.scalars()))
        value = Term("value", options={"clip": o.value_clip})
        cut = batch.minibatches(o.minibatches, epochs=o.epochs, seed=self.seed + self.step)
        for minibatch in cut:
            self.actor.update(minibatch, Term(self.loss), *self.kl.terms(), *self._extras())
            self.critic.update(minibatch, value)
            paid = minibatch.renamed("cost_values", "values").renamed("cost_returns", "returns")
            self.cost_critic.update(paid, value)
        self.learned = batch
        metrics = {**self.metrics(), **moved}
        if len(costs):
            metrics["cost/mean"] = float(costs.mean())
        return {**metrics, **self.kl.step(metrics, len(batch))}

    def _extras(self) -> tuple[Term, ...]:
        o = self.options
        terms = (Term("entropy", coef=o.entropy_coef),) if o.entropy_coef else ()
        if o.ptx_coef > 0:
            rows = self.data["ptx"].next(o.ptx_prompts)
            terms = (*terms, Term("nll", coef=o.ptx_coef, data=rows))
        return terms

    def state_dict(self) -> dict[str, Any]:
        """The multiplier with its window, and the KL coefficient."""
        return {"kl": self.kl.state_dict(), "multiplier": self.multiplier.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state."""
        self.kl.load_state_dict(state["kl"])
        self.multiplier.load_state_dict(state["multiplier"])
