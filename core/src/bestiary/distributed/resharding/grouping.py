"""Which shard of the target each rank takes, so that it keeps what it has."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bestiary.distributed.resharding.layout import Box, Layout, Parameter, overlap, volume
from bestiary.errors import PlacementError

Place = tuple[int, int]
"""Of a shard of the target: (pp, tp)."""


@dataclass(frozen=True, slots=True)
class Target:
    """Which shard of the target layout each rank takes.

    Args:
        layout: tensor and pipeline parallel degrees of generation.
        place: for each rank of the group that generates, its place (pp, tp).
    """

    layout: Layout
    place: Mapping[int, Place]

    def box(self, parameter: Parameter, rank: int) -> Box | None:
        """What the rank must have of a parameter."""
        return self.shard(parameter, self.place[rank]) if rank in self.place else None

    def shard(self, parameter: Parameter, place: Place) -> Box | None:
        """What a place must have of a parameter."""
        pp, tp = place
        return self.layout.shard(parameter, tp) if pp in self.layout.stages(parameter) else None

    def tensor_groups(self) -> list[list[int]]:
        """The ranks that generate together: one of each shard."""
        columns = [ranks for _, ranks in sorted(self.members().items())]
        return [list(group) for group in zip(*columns, strict=True)]

    def members(self) -> dict[Place, list[int]]:
        """The ranks of each place, in order."""
        found: dict[Place, list[int]] = {}
        for rank in sorted(self.place):
            found.setdefault(self.place[rank], []).append(rank)
        return found

    def micro_groups(self, source: Layout) -> list[list[int]]:
        """Ranks of one replica of the source that take the same shard: they gather it together."""
        found: dict[tuple[int, Place], list[int]] = {}
        for rank in sorted(self.place):
            replica = source.mesh.coordinates(rank - source.offset)["dp"]
            found.setdefault((replica, self.place[rank]), []).append(rank)
        return sorted(found.values())


def separate_target(layout: Layout) -> Target:
    """A target on ranks of its own: the place of each is that of its mesh."""
    place = {}
    for rank in layout.ranks:
        at = layout.mesh.coordinates(rank - layout.offset)
        place[rank] = (at["pp"], at["tp"])
    return Target(layout, place)


def choose_target(source: Layout, layout: Layout, parameters: Sequence[Parameter]) -> Target:
    """Give each rank of the source's group a shard of the target, so that it keeps what it has.

    The elements kept by all ranks together are the most that is possible with equally many ranks
    for each shard. Where degrees divide, this is HybridFlow's micro data parallelism
    (arXiv:2409.19256, section 5.3): ranks that hold parts of one shard take it.

    Raises:
        PlacementError: if the ranks cannot be shared out evenly.
    """
    world, shards = source.mesh.size, layout.mesh.pp * layout.mesh.tp
    if world % shards:
        raise PlacementError(
            f"generation with {layout.mesh} has {shards} shards, which do not divide the {world} "
            "ranks of training",
            hint="choose degrees whose product divides the number of ranks",
        )
    kept = _kept(source, Target(layout, {}), parameters)
    best = max(
        _candidates(source, layout), key=lambda place: sum(kept[r][p] for r, p in place.items())
    )
    return Target(layout, _improved(best, kept))


def _kept(
    source: Layout, target: Target, parameters: Sequence[Parameter]
) -> dict[int, dict[Place, int]]:
    """For each rank and place, the elements that the rank would keep there."""
    mesh = target.layout.mesh
    places = [(pp, tp) for pp in range(mesh.pp) for tp in range(mesh.tp)]
    wanted = [{place: target.shard(p, place) for place in places} for p in parameters]
    known: dict[tuple[int, int, int], dict[Place, int]] = {}
    out = {}
    for rank in source.ranks:
        at = source.mesh.coordinates(rank - source.offset)
        key = at["pp"], at["tp"], at["fsdp"]
        if key not in known:
            have = [source.box(p, rank) for p in parameters]
            known[key] = {
                place: sum(
                    p.copies * volume(overlap(box, want[place]))
                    for p, box, want in zip(parameters, have, wanted, strict=True)
                    if box is not None
                )
                for place in places
            }
        out[rank] = known[key]
    return out


def _candidates(source: Layout, layout: Layout) -> list[dict[int, Place]]:
    """Ranks sorted by what they hold and cut into equal runs; and stage by stage, part by part."""
    mesh, gen = source.mesh, layout.mesh
    shards = gen.pp * gen.tp
    made = []
    for dims in (("pp", "tp", "fsdp", "dp"), ("tp", "pp", "fsdp", "dp")):

        def order(rank: int, dims: tuple[str, ...] = dims) -> tuple[int, ...]:
            at = mesh.coordinates(rank - source.offset)
            return tuple(at[dim] for dim in dims)

        place: dict[int, Place] = {}
        for position, rank in enumerate(sorted(source.ranks, key=order)):
            shard = position * shards // mesh.size
            stage_first = dims[0] == "pp"
            a, b = divmod(shard, gen.tp if stage_first else gen.pp)
            place[rank] = (a, b) if stage_first else (b, a)
        made.append(place)
    if mesh.pp % gen.pp == 0 and mesh.tp % gen.tp == 0:
        place = {}
        for rank in source.ranks:
            at = mesh.coordinates(rank - source.offset)
            place[rank] = (at["pp"] * gen.pp // mesh.pp, at["tp"] * gen.tp // mesh.tp)
        made.insert(0, place)
    return made


def _improved(
    place: Mapping[int, Place], kept: Mapping[int, Mapping[Place, int]]
) -> dict[int, Place]:
    """Exchange ranks in a ring of places while that keeps more.

    Without such a ring the assignment keeps the most: the negative-cycle criterion of flows.
    """
    place = dict(place)
    places = sorted(set(place.values()))
    while any(kept[r][p] < max(kept[r].values()) for r, p in place.items()):
        best: dict[tuple[Place, Place], tuple[int, int]] = {}
        for rank, a in place.items():
            for b in places:
                gain = kept[rank][b] - kept[rank][a]
                if a != b and ((a, b) not in best or gain > best[a, b][0]):
                    best[a, b] = (gain, rank)
        ring = _ring(places, {edge: gain for edge, (gain, _) in best.items()})
        if not ring:
            break
        for a, b in ring:
            place[best[a, b][1]] = b
    return place


def _ring(
    places: Sequence[Place], gains: Mapping[tuple[Place, Place], int]
) -> list[tuple[Place, Place]]:
    """A closed way of positive gain (Bellman–Ford); empty for none."""
    reached = dict.fromkeys(places, 0)
    came: dict[Place, Place] = {}
    last: Place | None = None
    for _ in places:
        last = None
        for (a, b), gain in gains.items():
            if reached[a] + gain > reached[b]:
                reached[b], came[b], last = reached[a] + gain, a, b
        if last is None:
            return []
    assert last is not None  # noqa: S101 - there are places
    for _ in places:
        last = came[last]
    ring: list[tuple[Place, Place]] = []
    at = last
    while not ring or at != last:
        ring.append((came[at], at))
        at = came[at]
    return ring
