"""The test components."""

import time
from pathlib import Path

import torch

from bestiary import Algorithm, Term
from bestiary.ops.policy import clipped_surrogate
from bestiary.protocols import Configured


class Adaptive(Algorithm):
    """Its KL coefficient is state: coef *= 1 + clip(kl/target - 1, -0.2, 0.2) * n/horizon."""

    def __init__(self, options, seed):
        super().__init__(options, seed)
        self.coef = options.init

    def collect(self, prompts):
        batch = self.actor.generate(prompts, self.sampling)
        return batch.join(self.reward.score(batch), self.reference.logprobs(batch))

    def learn(self, batch):
        batch = batch.join(self.advantage(batch))
        self.actor.update(batch, Term(self.loss), Term("kl", coef=self.coef))
        metrics = self.metrics()
        error = min(max(metrics["kl/reference"] / self.options.target - 1, -0.2), 0.2)
        self.coef *= 1 + error * len(batch) / self.options.horizon
        return {**metrics, "kl/coef": self.coef}

    def state_dict(self):
        return {"coef": self.coef}

    def load_state_dict(self, state):
        self.coef = float(state["coef"])


class MeanOfGroup(Configured):
    """Scopes sample and group: ``x["group"]`` names the groups that are here."""

    def __call__(self, x, reduce, **scalars):
        reward, valid, group = x["reward"].double(), x["valid"].bool(), x["group"]
        out = torch.zeros_like(reward)
        for g in group.unique():
            rows = valid & (group == g)
            if rows.any():
                out[rows] = reward[rows] - reward[rows].mean()
        return {"advantages": out}


class MeanOfAll(Configured):
    """Scope row: the mean over all shards through ``reduce``."""

    def __call__(self, x, reduce, **scalars):
        live = x.mask.any(-1) & x["valid"].bool()
        reward = x["reward"].double()
        total = reduce.sum(torch.stack([reward[live].sum(), live.sum().double()]))
        out = torch.where(live, reward - total[0] / total[1], torch.zeros_like(reward))
        return {"advantages": out}


class PerToken(Configured):
    """Scope row, a value for each token."""

    def __call__(self, x, reduce, **scalars):
        reduce.sum(torch.zeros(()))
        place = torch.arange(x.mask.shape[1], dtype=torch.float64)
        return {"advantages": (x["reward"][:, None] * place + x["rollout_logprobs"]) * x.mask}


class WrongShape(Configured):
    """Returns one number for the whole batch."""

    def __call__(self, x, reduce, **scalars):
        return {"advantages": torch.zeros(1)}


class NaN(Configured):
    """Not a number, with gradient."""

    def __call__(self, now, x):
        return now.logprobs * float("nan"), {}


class Slow(Configured):
    """The clipped surrogate, after a pause."""

    def __call__(self, now, x):
        time.sleep(self.options.seconds)
        old, advantages = x["old_logprobs"], x.per_token("advantages")
        return clipped_surrogate(now.logprobs, old, advantages, x.mask), {}


class Calls(Configured):
    """A line for each call."""

    def _write(self, *words):
        with Path(self.options.path).open("a") as file:
            print(*words, file=file)

    def start(self, run):
        self._write("start", run.attempt)

    def log(self, step, metrics):
        self._write("log", step)

    def samples(self, step, rows):
        self._write("samples", step)

    def finish(self, status):
        self._write("finish", status)
