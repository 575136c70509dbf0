"""A mesh of ranks with named dims, written as in ``pp2.fsdp4.tp2``."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from bestiary.errors import PlacementError

DIMS: Final = ("pp", "dp", "fsdp", "tp")
"""Outermost first: the ranks of a tensor-parallel group follow each other (Megatron's order)."""

MEANING: Final = {
    "pp": "pipeline stages, each with a run of layers",
    "dp": "replicas",
    "fsdp": "shards of each parameter's rows (FSDP2)",
    "tp": "tensor-parallel shards",
}
_WORD = re.compile(r"([a-z]+)(\d+)")


@dataclass(frozen=True, slots=True)
class Mesh:
    """Sizes of the dims; a rank's number is its place with ``tp`` fastest and ``pp`` slowest.

    Args:
        pp: pipeline stages.
        dp: replicas.
        fsdp: row shards.
        tp: tensor-parallel shards.
    """

    pp: int = 1
    dp: int = 1
    fsdp: int = 1
    tp: int = 1

    def __post_init__(self) -> None:
        for name in DIMS:
            if getattr(self, name) < 1:
                raise PlacementError(f"{name}={getattr(self, name)}: at least 1 is wanted")

    @classmethod
    def parse(cls, text: str) -> "Mesh":
        """Read ``pp1.tp8.dp16``; the order of the words does not matter.

        Raises:
            PlacementError: for a word that is no dim with a number, or a dim that comes twice.
        """
        sizes: dict[str, int] = {}
        for word in filter(None, text.split(".")):
            found = _WORD.fullmatch(word)
            if found is None or found[1] not in DIMS:
                raise PlacementError(
                    f"layout {text!r}: {word!r} is not a dim with a size",
                    hint="write for example pp1.tp8.dp16; dims: "
                    + ", ".join(f"{name} ({MEANING[name]})" for name in DIMS),
                )
            if found[1] in sizes:
                raise PlacementError(f"layout {text!r} names {found[1]} twice")
            sizes[found[1]] = int(found[2])
        return cls(**sizes)

    @property
    def size(self) -> int:
        """Number of ranks."""
        return math.prod(getattr(self, name) for name in DIMS)

    def coordinates(self, rank: int) -> Mapping[str, int]:
        """The place of a rank in each dim."""
        found = {}
        for name in reversed(DIMS):
            rank, found[name] = divmod(rank, getattr(self, name))
        return found

    def __str__(self) -> str:
        words = [f"{n}{getattr(self, n)}" for n in DIMS if getattr(self, n) > 1]
        return ".".join(words) or "1"
