"""The prompts of a run: training source and held-out problems of the chosen task."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from bestiary.batch import Batch
from bestiary.config.schema import ModelOptions
from bestiary.data.source import ChatTemplate, PromptSource
from bestiary.data.split import prompt_key
from bestiary.errors import DataError, Owner, boundary
from bestiary.models.tokenizer import Tokenizer
from bestiary.protocols import Problem, Sampling, Task


@dataclass(frozen=True, slots=True)
class Prompts:
    """Both splits, tokenised, and what the task says about its answers."""

    train: PromptSource
    held_out: Batch
    task: Task
    reader: "Reader"


@dataclass(frozen=True, slots=True)
class Reader:
    """Turns problems and texts into prompts of the run's model.

    Args:
        tokenizer: of the run's model.
        model: template and limits of prompts.
        seed: of the order of prompts.
    """

    tokenizer: Tokenizer
    model: ModelOptions
    seed: int

    def source(self, problems: Sequence[Problem]) -> PromptSource:
        """Tokenised problems."""
        return PromptSource(
            problems,
            self.tokenizer,
            seed=self.seed,
            max_prompt=self.model.max_prompt_tokens,
            overlong=self.model.overlong,
            chat_template=_template(self.model.chat_template),
        )

    def prompts_from(self, batch: Batch, texts: Sequence[str]) -> Batch:
        """One new prompt for each row of a batch; its ``parent_uid`` is the row's group.

        Raises:
            ValueError: if there are not as many texts as rows.
        """
        if len(texts) != len(batch):
            raise ValueError(f"prompts_from: {len(texts)} texts for {len(batch)} rows")
        names = [
            f"{group}/{tag}{index}?"
            for group, tag, index in zip(
                batch["group_uid"], batch["tag"], batch["sample_index"], strict=True
            )
        ]
        problems = [Problem(uid=u, prompt=t) for u, t in zip(names, texts, strict=True)]
        made = self.source(problems).peek(np.arange(len(texts)))
        return made.with_columns(parent_uid=batch["group_uid"])


def load_prompts(
    task: Task, owner: Owner, folder: Path, model: ModelOptions, *, seed: int, eval_problems: int
) -> Prompts:
    """Read both splits of a task, check that they are disjoint, and tokenise them.

    Args:
        task: the chosen task.
        owner: who provides it.
        folder: the model's folder, for its tokenizer.
        model: template and limits of prompts.
        seed: of the order of the training prompts.
        eval_problems: held-out problems at most; the first ones of the split.

    Raises:
        DataError: for empty splits or held-out problems that occur in training.
    """
    reader = Reader(Tokenizer(folder), model, seed)
    with boundary(owner, "reading the task's problems", DataError):
        train, held_out = task.problems("train"), task.problems("eval")
    _check_splits(train, held_out, owner)

    evaluation = reader.source(held_out[:eval_problems])
    return Prompts(reader.source(train), evaluation.peek(np.arange(len(evaluation))), task, reader)


def _template(setting: bool | str) -> ChatTemplate:
    if setting == "auto":
        return "auto"
    return "always" if setting else "never"


def _check_splits(train: Sequence[Problem], held_out: Sequence[Problem], owner: Owner) -> None:
    for name, problems in (("train", train), ("eval", held_out)):
        if not problems:
            raise DataError(
                f"the task's split {name!r} is empty",
                hint="for files: task.eval_fraction=0.1, or task.eval_path=FILE"
                if name == "eval"
                else "problems('train') gave none",
                owner=owner,
            )
    known = {prompt_key(problem) for problem in train}
    leaked = [problem.uid for problem in held_out if prompt_key(problem) in known]
    if leaked:
        raise DataError(
            f"{len(leaked)} held-out problems occur in training, the first is {leaked[0]!r}",
            owner=owner,
            hint="held-out accuracy would mean nothing; make the splits disjoint",
        )


def with_task_limits(
    samplings: Sequence[Sampling], task: Task, explicit: int | None
) -> tuple[Sampling, ...]:
    """Fill in the task's response limit and stop texts where the algorithm leaves them open."""
    limit = task.max_tokens if explicit is None else explicit
    return tuple(replace(s, max_tokens=limit, stop=s.stop or tuple(task.stop)) for s in samplings)
