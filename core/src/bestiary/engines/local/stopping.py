"""Stop texts: find them in the decoded response while it grows.

Few tokens can complete a given text. A table over the vocabulary tells which; only rows that
drew one of them are decoded, so that a step costs one look-up for all rows.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_WINDOW = 64
"""Tokens that are decoded at the end of a response at least."""


class StopTexts:
    """Looks for stop texts at the ends of responses.

    Args:
        tokenizer: of the model; ids are decoded with it, never encoded.
        vocab: number of token ids that the model can draw.
    """

    def __init__(self, tokenizer: Any, vocab: int) -> None:  # noqa: ANN401 - transformers
        self._tokenizer = tokenizer
        self._vocab = vocab
        self._pieces: list[str] | None = None
        self._tables: dict[tuple[str, ...], NDArray[np.bool_]] = {}

    def candidates(self, stop: tuple[str, ...]) -> "NDArray[np.bool_]":
        """[V] True for tokens that may complete one of the texts."""
        table = self._tables.get(stop)
        if table is None:
            ends = {text[-1] for text in stop if text}
            # A piece with half a character, or without text of its own, is always looked at.
            marks = [
                not piece or "\ufffd" in piece or not ends.isdisjoint(piece)
                for piece in self._all_pieces()
            ]
            table = self._tables.setdefault(stop, np.array(marks, dtype=np.bool_))
        return table

    def found(self, ids: "NDArray[np.int64]", stop: tuple[str, ...]) -> bool:
        """Whether the response's last token completes one of the texts."""
        longest = max(len(text.encode()) for text in stop)
        tail = self._decode(ids[-max(_WINDOW, 4 * longest) :].tolist())
        return any(text in tail for text in stop if text)

    def _decode(self, ids: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(
            ids, skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return text

    def _all_pieces(self) -> list[str]:
        """The text of each token behind another one, where leading spaces are kept."""
        if self._pieces is None:
            anchor = self._tokenizer.encode("a", add_special_tokens=False)[-1:]
            before = len(self._decode(anchor))
            known = min(self._vocab, len(self._tokenizer))
            pieces = [self._decode([*anchor, i])[before:] for i in range(known)]
            self._pieces = pieces + [""] * (self._vocab - known)
        return self._pieces
