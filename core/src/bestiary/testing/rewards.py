"""Suites of rewards and tasks."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from bestiary.data.split import prompt_key
from bestiary.protocols import Problem, Reward, Sample, Task
from bestiary.rewards.check import Checked, check_scores
from bestiary.testing.suite import Suite

_ODD = ("", " ", "42", "the answer is 42.", "\n\t", "é" * 50, "0" * 2000, "\x00", "🦄", "-1e999")


class RewardSuite(Suite):
    """The contract of a reward (or cost)."""

    kind = "reward"
    answer: ClassVar[str] = "42"
    """A reference answer of the kind that the reward compares with."""
    extra: ClassVar[Mapping[str, Any]] = {}
    """What its samples carry."""

    def samples(self) -> list[Sample]:
        """Ordinary and odd responses."""
        texts = (self.answer, *_ODD)
        return [
            Sample(f"u{i}", f"prompt {i}", text, self.answer, len(text), i % 2 == 1, self.extra)
            for i, text in enumerate(texts)
        ]

    def score(self, samples: list[Sample]) -> list[Checked]:
        """One checked entry for each sample."""
        return check_scores(self.build()(samples), samples, self.component)

    def test_it_has_the_face_of_a_reward(self) -> None:
        """It can be called with samples."""
        assert isinstance(self.build(), Reward)

    def test_it_scores_every_sample_whatever_its_text(self) -> None:
        """One finite number, or None, for each of them."""
        samples = self.samples()
        assert len(self.score(samples)) == len(samples)

    def test_no_samples_are_no_scores(self) -> None:
        """A worker may have nothing to do."""
        assert self.score([]) == []

    def test_a_score_depends_on_its_sample_only(self) -> None:
        """Neither order nor company matters: samples are split over workers."""
        samples = self.samples()
        whole = self.score(samples)
        assert self.score(samples[::-1]) == whole[::-1]
        assert [self.score([sample])[0] for sample in samples] == whole

    def test_spans_are_declared(self) -> None:
        """A reward whose scores have spans says so."""
        reward = self.build()
        has = any(checked.spans for checked in self.score(self.samples()))
        assert not has or getattr(reward, "spans", False), "set `spans = True` on the class"


class TaskSuite(Suite):
    """The contract of a task."""

    kind = "task"

    def problems(self, split: Literal["train", "eval"]) -> list[Problem]:
        """All problems of a split."""
        task: Task = self.build()
        return list(task.problems(split))

    def test_it_has_the_whole_face(self) -> None:
        """Problems, a reward's name, a limit and stop texts."""
        task = self.build()
        assert isinstance(task, Task)
        assert task.max_tokens >= 1
        assert isinstance(task.reward, str)
        assert all(isinstance(text, str) for text in task.stop)

    def test_its_reward_is_registered(self) -> None:
        """And its cost, where it names one."""
        task, registry = self.build(), self.plugins().registry
        for name in (task.reward, getattr(task, "cost", "")):
            assert not name or registry.get("reward", name)

    def test_splits_are_there_and_apart(self) -> None:
        """Held-out problems never occur in training; uids name one problem."""
        train, held_out = self.problems("train"), self.problems("eval")
        assert train
        assert held_out
        assert not {prompt_key(p) for p in train} & {prompt_key(p) for p in held_out}
        for split in (train, held_out):
            assert len({p.uid for p in split}) == len(split)

    def test_it_is_reproducible(self) -> None:
        """The same problems in the same order."""
        assert self.problems("train") == self.problems("train")
        assert self.problems("eval") == self.problems("eval")

    def test_targets_are_all_there_or_none(self) -> None:
        """Supervised training takes every problem."""
        for name in ("target", "rejected"):
            there = {getattr(p, name) is not None for p in self.problems("train")}
            assert len(there) == 1, f"some problems have a {name} and some have none"
