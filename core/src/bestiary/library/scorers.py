"""Rewards and costs as objects."""

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from bestiary.batch import Batch
from bestiary.distributed.pools import ResourcePool
from bestiary.errors import PlacementError
from bestiary.library.prompts import Prompts, as_problems
from bestiary.library.sequences import Sequences, Texts, Tokens
from bestiary.library.values import PerSample
from bestiary.library.workbench import workbench
from bestiary.protocols import ComponentRef, Sample
from bestiary.rewards.loading import reward_ref
from bestiary.rewards.worker import RewardArgs
from bestiary.roles.score import ScoreRole

REWARD_WORKER: Final = "bestiary.rewards.worker:RewardWorker"
BY_PATH: Final = "classifier"
"""The registered reward that reads a model from a folder (package bestiary-scorers)."""

Function = Callable[[Sequence[Sample]], Any]


class Scores(PerSample):
    """One number a sample, NaN where it could not be scored.

    Attributes:
        baseline: the score of each sample's greedy baseline, where there is one; else None.
        parts: the named parts of each score.
    """

    def __init__(self, read: Callable[[], Batch]) -> None:
        self._rows = read
        super().__init__(self._numbers)

    def _numbers(self) -> np.ndarray:
        rows = self._rows()
        found: np.ndarray = np.where(rows["valid"].astype(bool), rows["reward"], np.nan)
        return found

    @property
    def baseline(self) -> PerSample | None:
        """The score of the greedy response to each sample's prompt."""
        rows = self._rows()
        return PerSample(lambda: rows["baseline_reward"]) if "baseline_reward" in rows else None

    @property
    def parts(self) -> list[dict[str, float]]:
        """The named parts of each score."""
        return [dict(part) for part in self._rows()["parts"]]


class RewardModel:
    """A function or model that gives each response a number, in processes of its own.

    Args:
        model: the name of a registered reward (``exact_match``, ``last_number`` …), a function as
            ``file.py:function`` or as it is, or a model: a folder or hub name of a sequence
            classifier or of a reward model that was trained here.
        resource_pool: where it runs; None is one CPU slot of its own.
        parallel_config: accepted for a model; scorers run replicated over their pool.
        timeout_s: seconds for one batch.
        options: of the reward.

    Raises:
        UserError: if there is no such reward, option or pool.
    """

    kind = "reward"

    def __init__(
        self,
        model: str | Function,
        *,
        resource_pool: ResourcePool | None = None,
        parallel_config: Any = None,  # noqa: ANN401 - nothing to lay out
        timeout_s: float = 600.0,
        **options: Any,  # noqa: ANN401 - the reward's own
    ) -> None:
        bench = workbench()
        self.bench = bench
        self.name = bench.name(self.kind)
        reference, function = self._resolve(model, options)
        if function is None:
            bench.components.options(reference)  # a wrong option is an error here
        pool = resource_pool or ResourcePool(devices=["cpu:0"], name=f"{self.name}-pool")
        if pool.name in bench.groups:
            raise PlacementError(
                f"{self.name}: the pool {pool.name!r} has models in it",
                hint="a scorer has a pool of its own",
            )
        args = RewardArgs(
            reward=reference, model="", limit_s=timeout_s, role=self.kind, function=function
        )
        group = bench.start(self.name, pool, REWARD_WORKER, args)
        bench.scorers.append(group)
        self.group = group
        self.role = ScoreRole("reward", group, bench.services())
        self._reads = ""

    def _resolve(
        self, model: str | Function, options: dict[str, Any]
    ) -> tuple[ComponentRef, Function | None]:
        if callable(model):
            name = f"{model.__module__}:{getattr(model, '__qualname__', type(model).__name__)}"
            return ComponentRef("reward", name), model
        if model in self.bench.plugins.registry.names("reward"):
            return ComponentRef("reward", model, options), None
        if ":" in model and not model.startswith(("tiny:", "pkg:")):
            reference = reward_ref(model)
            known = {**reference.options, "kwargs": options}
            return ComponentRef("reward", reference.name, known), None
        return ComponentRef("reward", BY_PATH, {"path": model, **options}), None

    def score(self, prompts: Prompts | str | None, texts: Any) -> Scores:  # noqa: ANN401 - see Args
        """Score responses; returns at once.

        Args:
            prompts: of the responses; needed where ``texts`` are plain texts, since they hold the
                answers that rewards compare with.
            texts: ``.texts`` of what was generated (decoded by the scorer), the sequences
                themselves, or a list of texts.
        """
        if isinstance(texts, (Texts, Tokens)):
            texts = texts.of
        if isinstance(texts, Sequences):
            return self._score(texts)
        return self._score_texts(prompts, [str(text) for text in texts])

    def _score(self, its: Sequences) -> Scores:
        folder = str(its.tokenizer.folder)
        if folder != self._reads:
            self.group.run("read_with", folder)
            self._reads = folder
        made = self.role.score(its.batch, "reward")
        return Scores(lambda: its.sampled.join(made))

    def _score_texts(self, prompts: Prompts | str | None, texts: list[str]) -> Scores:
        if prompts is None:
            raise ValueError("score: plain texts need their prompts")
        problems = as_problems(prompts)
        each, rest = divmod(len(texts), len(problems))
        if rest or not each:
            raise ValueError(f"{len(texts)} texts cannot be shared out to {len(problems)} prompts")
        samples = [
            Sample(
                uid=problem.uid,
                prompt=problem.prompt if isinstance(problem.prompt, str) else str(problem.prompt),
                response=texts[i * each + j],
                answer=problem.answer,
                response_len=0,
                truncated=False,
                extra=problem.extra,
            )
            for i, problem in enumerate(problems)
            for j in range(each)
        ]
        pending = self.group.submit("score_samples", [(samples,)] + [([],)] * (self.group.size - 1))

        def rows() -> Batch:
            found = pending.result(0)
            keys = np.arange(len(found), dtype=np.uint64)
            return Batch(
                {
                    "row_key": keys,
                    "reward": np.array([c.value for c in found]),
                    "valid": np.array([c.valid for c in found], dtype=bool),
                    "parts": _objects([dict(c.parts) for c in found]),
                }
            )

        return Scores(rows)


class CostModel(RewardModel):
    """A function or model that says how much a response costs; as a reward model."""

    kind = "cost"


def _objects(values: Sequence[Any]) -> np.ndarray:
    out = np.empty(len(values), dtype=object)
    out[:] = values
    return out
