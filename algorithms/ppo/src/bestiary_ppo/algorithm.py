"""PPO in two functions."""

from collections.abc import Mapping
from typing import Any

from bestiary import Algorithm, Batch, Term
from bestiary.kit import KLControl
from bestiary.protocols import PolicyHandle, ScoreHandle, ValueHandle
from bestiary_ppo.options import PPOOptions


class PPO(Algorithm):
    """Proximal policy optimisation (arXiv:1707.06347) as InstructGPT uses it (arXiv:2203.02155).

    With token rewards r_t = 1[t = T]·R − β·KL_t, values V_t before each token and advantages
    A_t from GAE, both models take ``epochs`` × ``minibatches`` steps on

        L_actor  = −mean_t min(ρ_t A_t, clip(ρ_t, 1−ε, 1+ε) A_t) − c_H·H_t              (eq. 7, 9)
        L_critic = ½ mean_t max((V_t − G_t)², (clip(V_t, V_old ± ε_v) − G_t)²),  G = A + V

    where ρ_t = π(t)/π_old(t), and old log-probabilities, values and advantages are those of the
    weights at the start of the step.
    """

    options: PPOOptions
    critic: ValueHandle
    reference: PolicyHandle
    reward: ScoreHandle

    def __init__(self, options: PPOOptions, seed: int) -> None:
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
        """Values and advantages under the weights of now, then both models' steps."""
        o = self.options
        batch = self.proximal(batch, always=True).join(self.critic.values(batch))
        batch = batch.join(self.advantage(batch, **self.kl.scalars()))
        value = Term("value", coef=o.value_coef, options={"clip": o.value_clip})
        entropy = (Term("entropy", coef=o.entropy_coef),) if o.entropy_coef else ()
        terms = (Term(self.loss), *self.kl.terms(), *entropy)
        cut = batch.minibatches(o.minibatches, epochs=o.epochs, seed=self.seed + self.step)
        for minibatch in cut:
            if o.shared_trunk:
                self.actor.update(minibatch, *terms, value)
                continue
            if self.step > o.critic_warmup:
                self.actor.update(minibatch, *terms)
            self.critic.update(minibatch, Term("value", options={"clip": o.value_clip}))
        self.learned = batch
        metrics = self.metrics()
        return {**metrics, **self.kl.step(metrics, len(batch))}

    def state_dict(self) -> dict[str, Any]:
        """The KL coefficient."""
        return {"kl": self.kl.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved coefficient."""
        self.kl.load_state_dict(state["kl"])
