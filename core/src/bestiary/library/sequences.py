"""What ``generate_sequences`` returns: rows whose tokens stay where they were drawn."""

from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from bestiary.batch import Batch, Column, ship
from bestiary.batch.expression import MASK, Reduction, names_in
from bestiary.library.values import PerSample, PerToken
from bestiary.models.tokenizer import Tokenizer
from bestiary.roles.model import Group
from bestiary.roles.services import spread

if TYPE_CHECKING:
    from torch import Tensor


class Sequences:
    """Responses to prompts, in the order of the prompts.

    Args:
        batch: all rows, those of a greedy baseline included.
        group: the workers that hold the tokens and do arithmetic on them.
        tokenizer: of the model whose tokens they are.
        temperature: at which they were drawn; log-probabilities are taken at the same.
    """

    def __init__(
        self, batch: Batch, group: Group, tokenizer: Tokenizer, temperature: float
    ) -> None:
        self.batch = batch
        self.sampled = batch.trainable()
        """The rows without those of a greedy baseline."""
        self.group = group
        self.tokenizer = tokenizer
        self.temperature = temperature

    @property
    def sequences(self) -> "Tokens":
        """The token ids, for other models and for an update."""
        return Tokens(self)

    @property
    def texts(self) -> "Texts":
        """The responses as text, decoded where they are scored."""
        return Texts(self)

    @property
    def log_probs(self) -> PerToken:
        """Of each token, under the distribution that it was drawn from."""
        if "rollout_logprobs" not in self.batch:
            raise ValueError(
                "these sequences were not drawn by a model: use get_log_probs(prompts, sequences)"
            )
        return PerToken.column(self, self.sampled, "rollout_logprobs")

    @cached_property
    def lengths(self) -> PerSample:
        """Tokens of each response."""
        return PerSample(lambda: self.sampled["response_len"])

    @property
    def truncated(self) -> PerSample:
        """Whether the token limit cut a response."""
        return PerSample(lambda: self.sampled["truncated"])

    @property
    def prompts(self) -> list[str]:
        """The prompt of each response, as text."""
        return [str(text) for text in self.sampled["prompt"]]

    @property
    def mask(self) -> "Tensor":
        """[B, T] bool, True on tokens that the policy sampled; brought here, which is counted."""
        import torch

        return torch.from_numpy(self.sampled.tokens(MASK).padded().astype(bool))

    def tensor(self) -> "Tensor":
        """[B, T] int64 response ids, 0 right of each; brought here, which is counted."""
        import torch

        return torch.from_numpy(self.sampled.tokens("response_ids").padded())

    def compute(self, value: PerToken, how: Reduction | None) -> Batch:
        """Submit the arithmetic of a column to the workers; returns at once."""
        rows = value.joined()
        names = sorted({MASK} | names_in(value.expression, "token"))
        table = sorted(names_in(value.expression, "sample"))
        runs = spread(rows["response_len"] + 1, self.group.size)
        calls = [(value.expression, ship(rows, run, names, table), how) for run in runs]
        column = Column.of(self.group.call("compute", calls), [len(run) for run in runs])
        made = {"value": column}
        keys = {"row_key": rows["row_key"]}
        return Batch(keys, made) if how is None else Batch(keys, {}, made)

    def __len__(self) -> int:
        return len(self.sampled)


class Tokens:
    """The token ids of sequences."""

    def __init__(self, of: Sequences) -> None:
        self.of = of

    def tensor(self) -> "Tensor":
        """[B, T] int64 response ids, 0 right of each; brought here, which is counted."""
        return self.of.tensor()

    def __len__(self) -> int:
        return len(self.of)


class Texts:
    """The responses as text; iterating decodes them here."""

    def __init__(self, of: Sequences) -> None:
        self.of = of

    @cached_property
    def _decoded(self) -> list[str]:
        ids = self.of.sampled.tokens("response_ids")
        return [self.of.tokenizer.decode(ids.row(i).tolist()) for i in range(len(ids))]

    def __iter__(self) -> Iterator[str]:
        return iter(self._decoded)

    def __getitem__(self, index: Any) -> Any:  # noqa: ANN401 - a text, or some
        return self._decoded[index]

    def __len__(self) -> int:
        return len(self.of)


def sequences_of(given: Any, what: str) -> Sequences:  # noqa: ANN401 - told in the error
    """The sequences behind what a caller passed on.

    Raises:
        TypeError: for anything that does not come from ``generate_sequences`` or ``sequences``.
    """
    if isinstance(given, Sequences):
        return given
    if isinstance(given, (Tokens, Texts)):
        return given.of
    raise TypeError(
        f"{what}: {type(given).__name__} given; what generate_sequences(prompts) returns (or its "
        ".sequences) is wanted; for texts of your own: actor.sequences(prompts, texts)"
    )


def as_floats(value: Any) -> np.ndarray:  # noqa: ANN401 - array-like
    """[B] float64 of what a caller passed as one number a sample."""
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    return np.asarray(value, dtype=np.float64)
