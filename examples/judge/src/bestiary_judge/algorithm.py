"""Learning under a judge in two functions."""

from dataclasses import replace

import numpy as np

from bestiary import Algorithm, Batch, Term
from bestiary.protocols import PolicyHandle, ScoreHandle
from bestiary_judge.options import JudgedOptions


class Judged(Algorithm):
    """GRPO on the verdicts of a language model."""

    options: JudgedOptions
    judge: PolicyHandle
    reward: ScoreHandle

    def collect(self, prompts: Batch) -> Batch:
        """Responses, a question about each, and the judge's greedy verdicts as rewards."""
        o, batch = self.options, self.actor.generate(prompts, self.sampling)
        pairs = list(zip(batch["prompt"], self.reward.texts(batch), strict=True))
        questions = [o.question.format(prompt=p, response=r) for p, r in pairs]
        wanted = [o.verdict.format(prompt=p, response=r).strip() for p, r in pairs]
        greedy = replace(self.sampling[0], n=1, greedy=True, trainable=False)
        said = self.judge.generate(self.prompts_from(batch, questions), greedy)
        verdicts = [text.strip() for text in self.reward.texts(said)]
        agreed = np.array([v == w for v, w in zip(verdicts, wanted, strict=True)])
        return batch.with_columns(
            reward=agreed.astype(np.float64), valid=np.ones(len(batch), dtype=bool)
        )

    def learn(self, batch: Batch) -> dict[str, float]:
        """One step on the group's advantages."""
        self.actor.update(batch.join(self.advantage(batch)), Term(self.loss))
        return self.metrics()
