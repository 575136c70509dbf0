"""Learning from process rewards in two functions."""

from bestiary import Algorithm, Batch, Term
from bestiary.protocols import ScoreHandle


class ProcessReward(Algorithm):
    """The policy gradient with a return of its own for each token."""

    reward: ScoreHandle

    def collect(self, prompts: Batch) -> Batch:
        """Responses, their rewards and the rewards of their steps."""
        batch = self.actor.generate(prompts, self.sampling)
        return batch.join(self.reward.score(batch))

    def learn(self, batch: Batch) -> dict[str, float]:
        """One step."""
        self.actor.update(batch.join(self.advantage(batch)), Term(self.loss))
        return self.metrics()
