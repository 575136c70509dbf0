"""GRPO in two functions."""

import numpy as np
from numpy.typing import NDArray

from bestiary import Algorithm, Batch, Term
from bestiary.kit import kl_term
from bestiary.protocols import PolicyHandle, ScoreHandle
from bestiary_grpo.options import GRPOOptions
from bestiary_grpo.variants import DAPOOptions


class GRPO(Algorithm):
    """Group relative policy optimisation (arXiv:2402.03300).

    For each prompt G responses are drawn from the policy, and each is compared with its group:

        A_i = (r_i − mean(r)) / (std(r) + ε)                                    (eq. 3)
        L   = −mean_t min(ρ_t A_i, clip(ρ_t, 1−ε_l, 1+ε_h) A_i) + β·KL_t        (eq. 1, 4)

    with ρ_t = π(t)/π_old(t). A group whose rewards are all equal carries no signal and gets zero
    advantages. The denominator is the loss's ``weights``; estimator and loss are components, so
    Dr.GRPO, DAPO and others are choices of options.
    """

    options: GRPOOptions
    reference: PolicyHandle
    reward: ScoreHandle

    def collect(self, prompts: Batch) -> Batch:
        """Draw the groups, score them, and keep the reference's log-probabilities."""
        batch = self.actor.generate(prompts, self.sampling)
        made = [self.reward.score(batch)]
        if self.options.kl_coef > 0:
            made.append(self.reference.logprobs(batch))
        return batch.join(*made)

    def learn(self, batch: Batch) -> dict[str, float]:
        """Compare within groups, then step on the clipped surrogate."""
        o = self.options
        if o.old == "rollout":
            batch = batch.renamed("rollout_logprobs", "old_logprobs")
        else:
            batch = self.proximal(batch, always=o.epochs * o.minibatches > 1)
        batch = batch.join(self.advantage(batch))
        # The limit is the constant length of Dr.GRPO; other ways of averaging ignore it.
        terms = [Term(self.loss, length_norm=float(self.sampling[0].max_tokens))]
        if o.kl_coef > 0:
            terms.append(kl_term(o.kl_coef, o.kl_kind, o.kl_gradient))
        if o.entropy_coef:
            terms.append(Term("entropy", coef=o.entropy_coef))
        cut = batch.minibatches(o.minibatches, epochs=o.epochs, seed=self.seed + self.step)
        for minibatch in cut:
            self.actor.update(minibatch, *terms)
        self.learned = batch
        return self.metrics()


class DAPO(GRPO):
    """DAPO (arXiv:2503.14476): GRPO with a soft punishment of overlong responses.

    Clip-higher, the token mean and dynamic sampling are its components' business.
    """

    options: DAPOOptions

    def collect(self, prompts: Batch) -> Batch:
        """The groups, with what long responses lose taken off their rewards."""
        batch, o = super().collect(prompts), self.options
        if o.overlong_buffer == 0:
            return batch
        limit = self.sampling[0].max_tokens
        lost = o.overlong_penalty * overlong(batch["response_len"], limit, o.overlong_buffer)
        return batch.with_columns(reward=batch["reward"] - lost)


def overlong(lengths: NDArray[np.int64], limit: int, buffer: int) -> NDArray[np.float64]:
    """Share of the penalty for each length: 0 up to limit − buffer, then linear to 1 at the limit.

    Source: Yu et al. 2025, arXiv:2503.14476, eq. 13, with the sign turned.
    """
    return np.clip((lengths - (limit - buffer)) / buffer, 0.0, 1.0)
