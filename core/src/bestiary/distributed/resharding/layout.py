"""Which part of each parameter a rank holds: boxes of indices, pure arithmetic."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from bestiary.distributed.resharding.mesh import Mesh

Box = tuple[tuple[int, int], ...]
"""(start, stop) in each dim."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a model, on paper.

    Args:
        name: checkpoint name.
        shape: of the whole parameter.
        tp_dim: dim that tensor parallelism splits; None is replicated over it.
        layer: number of its decoder layer; −1 comes before the layers (the embedding), and
            the number of layers or more after them (the last norm, the head).
        copies: how many parameters of the model this one stands for, on paper.
        blocks: equal units along ``tp_dim`` that are never cut: heads. 0 is each index.
        queries: for key-value heads, the query heads that they serve: a rank has the key-value
            heads of its query heads, so that ranks share one where there are too few.
        tied: the embedding is the output layer too, so the first and the last stage have it.
    """

    name: str
    shape: tuple[int, ...]
    tp_dim: int | None = None
    layer: int = -1
    copies: int = 1
    blocks: int = 0
    queries: int = 0
    tied: bool = False

    @property
    def numel(self) -> int:
        """Elements of the whole."""
        return volume(tuple((0, n) for n in self.shape))


@dataclass(frozen=True, slots=True)
class Layout:
    """A mesh, and how parameters lie on it.

    Tensor parallelism cuts ``tp_dim``, FSDP the rows of what is left (nested), pipeline stages own
    runs of layers, replicas hold the same. All cuts are those of ``torch.chunk`` (and so of FSDP2
    and DTensor): ⌈n / parts⌉ for each part in turn, so the last parts may have less or nothing.

    Args:
        mesh: of the ranks.
        layers: decoder layers of the model, for the stages.
        offset: number of the mesh's first rank in the group: separate trainers and generators
            follow each other.
    """

    mesh: Mesh
    layers: int = 0
    offset: int = 0

    @property
    def ranks(self) -> range:
        """The ranks that the mesh covers."""
        return range(self.offset, self.offset + self.mesh.size)

    def stages(self, parameter: Parameter) -> tuple[int, ...]:
        """The stages that have a parameter: the first the embedding, the last the head.

        A tied embedding is in both.
        """
        last = self.mesh.pp - 1
        if parameter.tied and last:
            return 0, last
        if last == 0 or parameter.layer < 0:
            return (0,)
        each = -(-self.layers // self.mesh.pp)
        return (last if parameter.layer >= self.layers else parameter.layer // each,)

    def box(self, parameter: Parameter, rank: int) -> Box | None:
        """What a rank holds of a parameter; None for nothing."""
        if rank not in self.ranks:
            return None
        at = self.mesh.coordinates(rank - self.offset)
        if at["pp"] not in self.stages(parameter):
            return None
        return self.shard(parameter, at["tp"], at["fsdp"])

    def shard(self, parameter: Parameter, tp: int, fsdp: int = 0) -> Box | None:
        """The box of a place in a stage that has the parameter."""
        box = [(0, n) for n in parameter.shape]
        if parameter.tp_dim is not None and self.mesh.tp > 1:
            box[parameter.tp_dim] = _split(parameter, parameter.tp_dim, self.mesh.tp, tp)
        if self.mesh.fsdp > 1 and box:
            start, stop = box[0]
            low, high = chunk(stop - start, self.mesh.fsdp, fsdp)
            box[0] = (start + low, start + high)
        made = tuple(box)
        return made if volume(made) else None


def _split(parameter: Parameter, dim: int, parts: int, index: int) -> tuple[int, int]:
    """The indices of a tensor-parallel part."""
    n, blocks = parameter.shape[dim], parameter.blocks
    if not blocks:
        return chunk(n, parts, index)
    unit = n // blocks
    if parameter.queries:
        first, end = chunk(parameter.queries, parts, index)
        start = first * blocks // parameter.queries
        stop = -(-end * blocks // parameter.queries) if end > first else start
    else:
        start, stop = chunk(blocks, parts, index)
    return start * unit, stop * unit


def chunk(n: int, parts: int, index: int) -> tuple[int, int]:
    """The part of ``range(n)`` that ``torch.chunk`` gives to an index."""
    each = -(-n // parts)
    return min(index * each, n), min((index + 1) * each, n)


def volume(box: Box | None) -> int:
    """Elements of a box; 0 for none."""
    if box is None:
        return 0
    out = 1
    for start, stop in box:
        out *= max(0, stop - start)
    return out


def overlap(a: Box | None, b: Box | None) -> Box | None:
    """What two boxes share; None where that is nothing."""
    if a is None or b is None:
        return None
    made = tuple((max(x, u), min(y, v)) for (x, y), (u, v) in zip(a, b, strict=True))
    return made if volume(made) else None


def contiguous(part: Box, within: Box) -> bool:
    """Whether a part of a box is one run of memory in it: a row, or whole rows."""
    first = next((d for d, (a, b) in enumerate(part) if b - a != 1), len(part))
    return part[first + 1 :] == within[first + 1 :]


def cells(box: Box, cuts: Sequence[Box]) -> list[Box]:
    """Cut a box along the edges of others: every cell lies inside or outside of each of them."""
    made: list[list[tuple[int, int]]] = [[]]
    for dim, (start, stop) in enumerate(box):
        edges = {start, stop}
        for other in cuts:
            edges |= {e for e in other[dim] if start < e < stop}
        ordered = sorted(edges)
        runs = list(pairwise(ordered))
        made = [[*cell, run] for cell in made for run in runs]
    return [tuple(cell) for cell in made]
