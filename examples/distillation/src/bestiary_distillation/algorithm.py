"""On-policy distillation in two functions, and its loss."""

from torch import Tensor

from bestiary import Algorithm, Batch, Term
from bestiary.batch import Rows
from bestiary.ops.kl import kl_loss
from bestiary.protocols import Configured, ModelOutput, PolicyHandle, ScoreHandle, Stat


class Distillation(Algorithm):
    """L = mean_t KL(student || teacher), estimated on tokens that the student sampled."""

    teacher: PolicyHandle
    reward: ScoreHandle

    def collect(self, prompts: Batch) -> Batch:
        """The student's responses with the teacher's log-probabilities."""
        batch = self.actor.generate(prompts, self.sampling)
        told = self.teacher.logprobs(batch, into="teacher_logprobs")
        return batch.join(told, self.reward.score(batch))

    def learn(self, batch: Batch) -> dict[str, float]:
        """One step towards the teacher; rewards are not used."""
        self.actor.update(batch, Term(self.loss))
        return self.metrics()


class ReverseKL(Configured):
    """An estimate whose gradient is that of the reverse KL."""

    def __call__(self, now: ModelOutput, x: Rows) -> tuple[Tensor, dict[str, Stat]]:
        """[b, T] k1 estimate in value, straight-through k2 in gradient."""
        now_BT, teacher_BT = now.need("logprobs"), x["teacher_logprobs"]
        loss_BT = kl_loss(now_BT, teacher_BT, x.mask, kind="k1", gradient="straight_through_k2")
        total = float(loss_BT.detach().masked_fill(~x.mask, 0).sum())
        return loss_BT, {"kl/teacher": Stat(total, float(x.mask.sum()))}
