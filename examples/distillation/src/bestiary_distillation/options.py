"""Options of distillation."""

from dataclasses import dataclass
from typing import ClassVar

from bestiary.protocols import AlgorithmOptions, LossOptions, Role, Sampling


@dataclass(frozen=True, kw_only=True, slots=True)
class DistillationOptions(AlgorithmOptions):
    """The student answers, the teacher says how likely each token was (arXiv:2306.13649)."""

    components: ClassVar[dict[str, str]] = {"loss": "reverse_kl"}

    teacher: str
    """The teacher's weights, as ``model.path``; it shares the student's tokens."""
    samples: int = 4
    """Responses for each prompt."""

    def roles(self) -> tuple[Role, ...]:
        """The student, the teacher, and a scorer that only tells how far they got."""
        teacher = Role("teacher", frozen=True, kind="policy", path=self.teacher)
        return (Role("actor"), teacher, Role("reward", frozen=True))

    def samplings(self) -> tuple[Sampling, ...]:
        """``samples`` responses for each prompt."""
        return (Sampling(n=self.samples),)

    def provides(self) -> frozenset[str]:
        """What is there before the update."""
        return frozenset({"teacher_logprobs"})


@dataclass(frozen=True, kw_only=True, slots=True)
class ReverseKLOptions(LossOptions):
    """KL(student || teacher) on the student's own tokens."""

    requires: ClassVar[frozenset[str]] = frozenset({"teacher_logprobs"})
