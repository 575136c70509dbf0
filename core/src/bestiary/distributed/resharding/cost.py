"""What a transition costs, on paper: bytes, peak and redundancy of four ways of doing it.

M is the bytes of the weights; training has p·t·d, generation p_g·t_g. The first three are the
formulae of HybridFlow (arXiv:2409.19256, table 2), checked here against counted boxes; ours is
counted from the layouts themselves.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from bestiary.distributed.resharding.grouping import Target, choose_target
from bestiary.distributed.resharding.layout import Layout, Parameter, overlap, volume
from bestiary.distributed.resharding.plan import class_of


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one way, in bytes a rank.

    Args:
        way: its name.
        received: from other ranks; the largest of any rank.
        peak: weights that a rank holds at once while it generates, beside its training shard
            where that is kept.
        redundant: training weights that are kept and not part of what generation uses.
    """

    way: str
    received: float
    peak: float
    redundant: float


def formulas(total: float, *, p: int, t: int, d: int, p_g: int, t_g: int) -> list[Cost]:
    """DeepSpeed-Chat, HybridFlow-V and HybridFlow.

    DeepSpeed-Chat gathers everything from all ranks (ZeRO-3), HybridFlow-V from a model-parallel
    group, HybridFlow from a micro data-parallel group, where t·p is a multiple of t_g·p_g.
    """
    made = [
        Cost("DS-Chat", (t * p * d - 1) / (t * p * d) * total, total, total / (t * p * d)),
        Cost("HybridFlow-V", (t * p - 1) / (t * p) * total, total, total / (t * p)),
    ]
    if (t * p) % (t_g * p_g) == 0:
        received = (t * p - t_g * p_g) / (t_g * p_g * t * p) * total
        made.append(Cost("HybridFlow", received, total / (t_g * p_g), 0.0))
    return made


def grouped(parameters: Sequence[Parameter], source: Layout, target: Layout) -> list[Parameter]:
    """Parameters of equal shape and stages as one with ``copies``: large models in few terms."""
    found: dict[tuple[object, ...], Parameter] = {}
    for p in parameters:
        key = class_of(p, source, target)
        old = found.get(key)
        found[key] = p if old is None else replace(old, copies=old.copies + p.copies)
    return list(found.values())


@dataclass(frozen=True, slots=True)
class Counted:
    """Bytes of each rank, from the boxes.

    Args:
        received: what it gets from others.
        target: what it generates with.
        kept: what it had already.
        redundant: of its training weights what generation does not use.
    """

    received: dict[int, int]
    target: dict[int, int]
    kept: dict[int, int]
    redundant: dict[int, int]


def count(
    parameters: Sequence[Parameter], source: Layout, target: Target, itemsize: int
) -> Counted:
    """Bytes of each rank: received = target − own overlap, the least that is possible."""
    groups = grouped(parameters, source, target.layout)
    out = Counted({}, {}, {}, {})
    for rank in sorted({*source.ranks, *target.place}):
        want = have = both = 0
        for p in groups:
            a, b = source.box(p, rank), target.box(p, rank)
            have += p.copies * volume(a)
            want += p.copies * volume(b)
            both += p.copies * volume(overlap(a, b))
        out.received[rank] = (want - both) * itemsize
        out.target[rank] = want * itemsize
        out.kept[rank] = both * itemsize
        out.redundant[rank] = (have - both) * itemsize
    return out


def compare(
    parameters: Sequence[Parameter], source: Layout, layout: Layout, itemsize: int = 2
) -> tuple[list[Cost], Counted, Target]:
    """Ours beside the published ways whose formulae hold, and what ours gives each rank.

    The formulae of HybridFlow are for weights that data parallelism replicates: with row shards
    only DeepSpeed-Chat's is meant, which gathers from all ranks.
    """
    groups = grouped(parameters, source, layout)
    target = choose_target(source, layout, groups)
    counted = count(groups, source, target, itemsize)
    total = float(sum(p.numel * p.copies for p in parameters) * itemsize)
    mesh, gen = source.mesh, layout.mesh
    known = formulas(total, p=mesh.pp, t=mesh.tp, d=mesh.dp * mesh.fsdp, p_g=gen.pp, t_g=gen.tp)
    ours = Cost(
        "bestiary",
        float(max(counted.received.values())),
        float(max(counted.target.values())),
        float(max(counted.redundant.values())),
    )
    return [*(known[:1] if mesh.fsdp > 1 else known), ours], counted, target
