"""Handles of blocks that workers made."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from bestiary.batch import RowBlock
from bestiary.batch.ragged import Array
from bestiary.distributed.failures import UpstreamError
from bestiary.distributed.traffic import INLINE_BYTES, count_driver_bytes

FETCH_TIMEOUT_S = 300.0
"""Seconds in which an existing block must arrive from another machine."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What travels to the controller of a call that made a block."""

    table: Mapping[str, Array]
    report: Any
    size_bytes: int
    """Bytes of the token columns, which stay behind."""

    @property
    def inline_bytes(self) -> int:
        """Bytes of a block so small that it comes along with the answer."""
        return self.size_bytes if self.size_bytes < INLINE_BYTES else 0


class RemoteBlock:
    """A block in the object store: token columns there, sample columns with the answer.

    On the controller, waiting is supervised: the first failure of any worker ends it. Pickled, it
    is two references, so another worker reads the block from the store of its machine, as
    read-only views that were not copied.

    Args:
        tokens: reference to the token columns.
        answer: reference to the :class:`Answer`.
        wait: brings the answer under supervision; None away from the controller.
    """

    __slots__ = ("_answer", "_answer_ref", "_block", "_tokens_ref", "_wait")
    is_reference = True

    def __init__(
        self,
        tokens: Any,  # noqa: ANN401 - ray.ObjectRef, which is not imported here
        answer: Any,  # noqa: ANN401
        wait: Callable[[], Answer] | None = None,
    ) -> None:
        self._tokens_ref = tokens
        self._answer_ref = answer
        self._wait = wait
        self._answer: Answer | None = None
        self._block: RowBlock | None = None

    def get(self) -> RowBlock:
        """Wait for the block and bring it here."""
        if self._block is None:
            answer = self._answered()
            tokens = fetch(self._tokens_ref)
            # A small block has come through this process already: its answer counted it.
            if self._wait is not None and answer.size_bytes >= INLINE_BYTES:
                count_driver_bytes(answer.size_bytes)
            self._block = RowBlock(tokens, answer.table)
        return self._block

    def table(self) -> Mapping[str, Array]:
        """Wait for the sample columns only; token columns do not move."""
        return self._answered().table

    def report(self) -> Any:  # noqa: ANN401 - the worker's own
        """Wait for the second value that the method returned."""
        return self._answered().report

    def _answered(self) -> Answer:
        if self._answer is None:
            self._answer = self._wait() if self._wait is not None else fetch(self._answer_ref)
        return self._answer

    def __reduce__(self) -> tuple[Any, ...]:
        return RemoteBlock, (self._tokens_ref, self._answer_ref)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RemoteBlock) and other._tokens_ref == self._tokens_ref

    def __hash__(self) -> int:
        return hash(self._tokens_ref)


class LocalBlock:
    """A block of a group in this process, with the same face as :class:`RemoteBlock`."""

    __slots__ = ("_block", "_report")

    def __init__(self, block: RowBlock, report: Any) -> None:  # noqa: ANN401
        self._block = block
        self._report = report

    def get(self) -> RowBlock:
        """The block."""
        return self._block

    def table(self) -> Mapping[str, Array]:
        """The block's sample columns."""
        return self._block.table

    def report(self) -> Any:  # noqa: ANN401
        """The second value that the method returned."""
        return self._report


def fetch(reference: Any) -> Any:  # noqa: ANN401 - whatever the reference stands for
    """Read a value from the object store.

    Raises:
        UpstreamError: if the call that makes it failed, or the machine that held it is gone.
    """
    import ray
    from ray.exceptions import GetTimeoutError, RayError

    try:
        return ray.get(reference, timeout=FETCH_TIMEOUT_S)
    except (RayError, GetTimeoutError) as error:
        first = str(error).strip().splitlines()
        raise UpstreamError(
            f"a block that was passed in cannot be read: {type(error).__name__}"
            + (f": {first[0][:200]}" if first else "")
        ) from error
