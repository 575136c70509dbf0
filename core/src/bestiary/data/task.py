"""The built-in task ``jsonl``: prompts of one's own from a file."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from bestiary.data.files import read_rows
from bestiary.data.rows import Columns, to_problems
from bestiary.data.split import split_by_uid, without_leaks
from bestiary.errors import ConfigError, DataError
from bestiary.protocols import Problem


@dataclass(frozen=True, kw_only=True, slots=True)
class FileTaskOptions:
    """Where prompts and answers are, and how they are split."""

    path: str = ""
    """A .jsonl, .json, .csv or .parquet file; must be given."""
    eval_path: str = ""
    """Held-out prompts in a file of their own; else ``eval_fraction`` of ``path`` is held out."""
    eval_fraction: float = 0.05
    """Share that is held out, chosen by the hash of the uid."""
    prompt: str = "prompt"
    """Column with a text, or with chat messages ``[{"role": …, "content": …}]``; empty: what
    comes before the last answer in ``target`` and ``rejected``, which are whole conversations."""
    answer: str = "answer"
    """Column with the reference answer: a text, a number or a list of them; empty: none."""
    target: str = ""
    """Column with the text that supervised training imitates, and the preferred one of a pair: a
    text, or messages of which the assistant's last counts; empty: none."""
    rejected: str = ""
    """Column with the other text of a preference pair; empty: none."""
    choice: str = ""
    """Column that says which of the two is preferred: 0 (or false) is ``target``, 1 is
    ``rejected``; empty: always ``target``."""
    safe: tuple[str, ...] = ()
    """The two columns that say whether ``target`` and ``rejected`` are safe; cost models learn
    from them. They become ``chosen_safe`` and ``rejected_safe`` in ``sample.extra``."""
    uid: str = ""
    """Column with a unique name of the row; empty: a hash of the prompt."""
    extra: tuple[str, ...] = ()
    """Columns that rewards get in ``sample.extra``."""
    chat: bool = False
    """Make a message of the user of each plain prompt."""
    system: str = ""
    """A system message before each prompt."""
    bad_rows: Literal["error", "drop"] = "error"
    """Rows of the wrong type: refuse the file, or leave them out and count them."""
    reward: str = "exact_match"
    """Name of the reward."""
    max_tokens: int = 64
    """Response tokens at most."""
    stop: tuple[str, ...] = ()
    """Texts that end a response."""

    def __post_init__(self) -> None:
        if not 0.0 <= self.eval_fraction < 1.0:
            raise ConfigError(f"eval_fraction={self.eval_fraction}: must be in [0, 1)")
        if self.rejected and not self.target:
            raise ConfigError(
                f"rejected={self.rejected!r} without target: a pair needs both",
                hint="set task.target to the column of the preferred response",
            )
        if not self.prompt and not self.target:
            raise ConfigError(
                "prompt is empty, so target must name a column with whole conversations",
                hint="set task.prompt, or task.target to the column of the conversations",
            )
        if (self.choice or self.safe) and not self.rejected:
            raise ConfigError(
                f"choice={self.choice!r} safe={list(self.safe)} without rejected: they belong to "
                "pairs",
                hint="set task.target and task.rejected to the columns of the two responses",
            )
        if len(self.safe) not in (0, 2):
            raise ConfigError(
                f"safe={list(self.safe)}: two columns are wanted, that of target and that of "
                "rejected"
            )
        if self.max_tokens < 1:
            raise ConfigError(f"max_tokens={self.max_tokens}: must be at least 1")
        if self.bad_rows not in ("error", "drop"):
            raise ConfigError(f"bad_rows={self.bad_rows!r}", hint="choose error or drop")


class FileTask:
    """Problems from files; both splits are read and checked when the task is made.

    Args:
        options: where the files are.

    Raises:
        DataError: for a file that cannot be used, naming its rows.
    """

    def __init__(self, options: FileTaskOptions) -> None:
        if not options.path:
            raise DataError(
                "task jsonl: no file is given", hint="set task.path=/path/to/prompts.jsonl"
            )
        self.options = options
        self.reward = options.reward
        self.max_tokens = options.max_tokens
        self.stop = tuple(options.stop)
        self.left_out: list[tuple[int, str]] = []
        """(row, reason) of the rows of ``path`` that are not used."""
        problems, self.left_out = self._read(options.path)
        if options.eval_path:
            split = without_leaks(problems, self._read(options.eval_path)[0])
        else:
            split = split_by_uid(problems, options.eval_fraction)
        if not split.train:
            raise DataError(f"{options.path}: every prompt is also held out; none is left to train")
        self.leaked = split.leaked
        """Problems that were not trained on because their prompt is held out."""
        self._split = split

    def _read(self, path: str) -> tuple[list[Problem], list[tuple[int, str]]]:
        options = self.options
        columns = Columns(
            prompt=options.prompt,
            answer=options.answer,
            target=options.target,
            rejected=options.rejected,
            choice=options.choice,
            safe=tuple(options.safe),
            uid=options.uid,
            extra=tuple(options.extra),
        )
        return to_problems(
            read_rows(path),
            columns,
            where=path,
            chat=options.chat,
            system=options.system,
            drop_bad=options.bad_rows == "drop",
        )

    def problems(self, split: Literal["train", "eval"]) -> Sequence[Problem]:
        """All problems of a split, in the order of the file."""
        return self._split.train if split == "train" else self._split.evaluation
