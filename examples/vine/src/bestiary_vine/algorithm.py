"""VinePPO in two functions."""

from dataclasses import replace

import numpy as np

from bestiary import Algorithm, Batch, Term
from bestiary.batch import Ragged, prefixes, token_column
from bestiary.protocols import ScoreHandle
from bestiary_vine.options import VineOptions


class Vine(Algorithm):
    """PPO whose values are means over continuations (arXiv:2410.01679, eq. 5 and 6).

    A step from state s to s' has the advantage V(s') − V(s), on each of its tokens, where V(s) is
    the mean reward of ``branches`` responses that go on from s, and the reward itself at the end.
    """

    options: VineOptions
    reward: ScoreHandle

    def collect(self, prompts: Batch) -> Batch:
        """Responses, continuations from each of their states, and advantages of the steps."""
        o, batch = self.options, self.actor.generate(prompts, self.sampling)
        batch = batch.join(self.reward.score(batch))
        rows = np.concatenate([np.full(-(-n // o.stride), i) for i, n in states(batch)])
        cuts = np.concatenate([np.arange(0, n, o.stride) for _, n in states(batch)])
        branch = replace(self.sampling[0], n=o.branches, tag="branch", trainable=False)
        tree = self.actor.generate(prefixes(batch.take(rows), cuts), branch)
        tree = tree.join(self.reward.score(tree))
        value = tree["reward"].reshape(len(rows), o.branches).mean(axis=1)
        steps = [np.diff(np.append(value[rows == i], batch["reward"][i])) for i, _ in states(batch)]
        advantages = [
            np.repeat(s, o.stride)[:n] for s, (_, n) in zip(steps, states(batch), strict=True)
        ]
        return batch.join(token_column(batch, advantages=Ragged.from_rows(advantages)))

    def learn(self, batch: Batch) -> dict[str, float]:
        """One step."""
        self.actor.update(batch, Term(self.loss))
        return self.metrics()


def states(batch: Batch) -> list[tuple[int, int]]:
    """(row, response tokens) of each row."""
    return list(enumerate(batch["response_len"].tolist()))
