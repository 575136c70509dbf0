"""GRPO in two functions."""

from bestiary import Algorithm, Batch, Term
from bestiary.protocols import PolicyHandle, ScoreHandle
from bestiary_grpo.options import GRPOOptions


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
        elif o.epochs * o.minibatches > 1:
            batch = batch.join(self.actor.logprobs(batch, into="old_logprobs"))
        batch = batch.join(self.advantage(batch))
        terms = [Term(self.loss)]
        if o.kl_coef > 0:
            kl = {"kind": o.kl_kind, "gradient": o.kl_gradient}
            terms.append(Term("kl", coef=o.kl_coef, options=kl))
        if o.entropy_coef:
            terms.append(Term("entropy", coef=o.entropy_coef))
        cut = batch.minibatches(o.minibatches, epochs=o.epochs, seed=self.seed + self.step)
        for minibatch in cut:
            self.actor.update(minibatch, *terms)
        return self.metrics()
