"""Plans carried out by real gloo ranks: every pair of layouts, to the bit and to the byte."""

import numpy as np
import pytest
import torch

from bestiary.distributed.resharding.execute import Resharder
from bestiary.distributed.resharding.layout import Layout, Parameter
from bestiary.distributed.resharding.mesh import Mesh
from bestiary.distributed.resharding.plan import (
    choose_target,
    plan_reshard,
    separate_target,
)
from bestiary.errors import EngineError
from bestiary.testing.ranks import run_ranks

PARAMETERS = [
    Parameter("embed", (37, 16), 0),
    *(
        p
        for i in range(4)
        for p in (
            Parameter(f"{i}.q", (32, 16), 0, i, blocks=4),
            Parameter(f"{i}.k", (16, 16), 0, i, blocks=2),
            Parameter(f"{i}.o", (16, 32), 1, i, blocks=4),
            Parameter(f"{i}.down", (16, 29), 1, i),
            Parameter(f"{i}.norm", (16,), None, i),
        )
    ),
    Parameter("head", (37, 16), 0, 4),
]
SOURCES = {
    4: ["dp4", "fsdp4", "tp4", "pp4", "dp2.tp2", "fsdp2.tp2", "pp2.tp2", "dp2.fsdp2", "pp2.fsdp2"],
    8: ["fsdp8", "tp4.dp2", "fsdp4.tp2", "pp2.fsdp2.tp2", "dp2.fsdp2.tp2", "pp2.tp2.dp2"],
}
TARGETS = ["tp1", "tp2", "tp4", "pp2", "pp2.tp2"]


def value(parameter, dtype=torch.float32):
    """The whole parameter, different everywhere."""
    seed = sum(map(ord, parameter.name))
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(parameter.shape, generator=generator).to(dtype)


def part(parameter, box, dtype=torch.float32):
    return value(parameter, dtype)[tuple(slice(a, b) for a, b in box)].clone()


def shards(layout, rank):
    made = {}
    for p in PARAMETERS:
        box = layout.box(p, rank)
        if box is not None:
            made[p.name] = part(p, box)
    return made


def check(rank, world, pairs, bucket_bytes, dtype):
    """Run each pair on this rank; returns (bytes as counted, as planned) of each."""
    out = []
    for text, generate in pairs:
        source = Layout(Mesh.parse(text), layers=4)
        layout = Layout(Mesh.parse(generate), layers=4)
        target = choose_target(source, layout, PARAMETERS)
        plan = plan_reshard(PARAMETERS, source, target)
        mine = shards(source, rank)
        before = {name: t.clone() for name, t in mine.items()}
        moving = Resharder(plan, rank, mine, dtype=dtype, bucket_bytes=bucket_bytes)
        got = {}
        for bucket in moving:
            assert not set(bucket) & set(got)
            got.update({name: t.clone() for name, t in bucket.items()})
        wanted = {p.name: b for p in PARAMETERS if (b := target.box(p, rank)) is not None}
        assert got.keys() == wanted.keys()
        for p in PARAMETERS:
            if p.name in wanted:
                assert torch.equal(got[p.name], part(p, wanted[p.name], dtype)), (text, p.name)
        for name, tensor in mine.items():  # training goes on with the very same weights
            assert torch.equal(tensor, before[name])
        planned = plan.received()[rank] * dtype.itemsize
        limit = max(bucket_bytes, max(p.numel for p in PARAMETERS) * dtype.itemsize)
        assert moving.traffic.buffer_bytes <= limit
        assert set(moving.traffic.in_place) <= set(plan.in_place(rank))
        if dtype == torch.float32:
            assert set(moving.traffic.in_place) == set(plan.in_place(rank))
        out.append((moving.traffic.received_bytes, planned, moving.traffic.sent_bytes))
    return out


@pytest.mark.parametrize("world", [4, 8])
@pytest.mark.parametrize(
    ("bucket_bytes", "dtype"),
    [(1 << 20, torch.float32), (3000, torch.float32), (3000, torch.bfloat16)],
)
def test_every_pair_of_layouts_is_exact_and_at_the_bound(world, bucket_bytes, dtype):
    pairs = [(a, b) for a in SOURCES[world] for b in TARGETS if world % Mesh.parse(b).size == 0]
    found = run_ranks(world, check, pairs, bucket_bytes, dtype, timeout_s=240)
    for number, pair in enumerate(pairs):
        rows = [rank[number] for rank in found]
        assert [r[0] for r in rows] == [r[1] for r in rows], pair
        assert sum(r[0] for r in rows) == sum(r[2] for r in rows), pair


def test_uneven_shards_of_three_by_two():
    pairs = [("fsdp3.tp2", "tp2"), ("fsdp3.tp2", "tp1"), ("dp3.tp2", "tp2"), ("fsdp6", "tp2")]
    for rank in run_ranks(6, check, pairs, 2000, torch.float32, timeout_s=120):
        assert [r[0] for r in rank] == [r[1] for r in rank]


def apart(rank, world, trainers, generators):
    source = Layout(Mesh.parse(trainers), layers=4)
    target = separate_target(Layout(Mesh.parse(generators), layers=4, offset=source.mesh.size))
    plan = plan_reshard(PARAMETERS, source, target)
    moving = Resharder(plan, rank, shards(source, rank), dtype=torch.float32, bucket_bytes=4000)
    got = {}
    for bucket in moving:
        got.update(bucket)
    for p in PARAMETERS:
        box = target.box(p, rank)
        assert (p.name in got) == (box is not None)
        if box is not None:
            assert torch.equal(got[p.name], part(p, box))
    return moving.traffic.received_bytes, plan.received()[rank] * 4


@pytest.mark.parametrize(
    ("trainers", "generators"), [("fsdp2.tp2", "tp4"), ("pp2.tp2", "tp2"), ("fsdp3", "pp2.tp2")]
)
def test_from_trainers_to_generators_of_their_own(trainers, generators):
    world = Mesh.parse(trainers).size + Mesh.parse(generators).size
    for found, planned in run_ranks(world, apart, trainers, generators, timeout_s=120):
        assert found == planned


def test_a_shard_of_another_shape_is_refused():
    plan = plan_reshard(
        PARAMETERS,
        Layout(Mesh(tp=2), layers=4),
        choose_target(Layout(Mesh(tp=2), layers=4), Layout(Mesh(), layers=4), PARAMETERS),
    )
    wrong = {p.name: torch.zeros(1) for p in PARAMETERS}
    with pytest.raises(EngineError, match=r"rank 0 must have embed of the shape \(19, 16\)"):
        Resharder(plan, 0, wrong, dtype=torch.float32)


def fsdp(rank, world):
    """The shards of a real FSDP2 module are those of the layout ``fsdp``."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Linear(7, 3))
    full = {n: p.detach().clone() for n, p in net.named_parameters()}
    fully_shard(net, mesh=init_device_mesh("cpu", (world,)))
    parameters = [Parameter(n, tuple(p.shape)) for n, p in full.items()]
    source = Layout(Mesh(fsdp=world))
    mine = {}
    for p in parameters:
        local = dict(net.named_parameters())[p.name].to_local().detach()
        box = source.box(p, rank)
        if box is None:
            assert local.numel() == 0
            continue
        assert tuple(local.shape) == tuple(b - a for a, b in box)
        mine[p.name] = local
    target = choose_target(source, Layout(Mesh()), parameters)
    plan = plan_reshard(parameters, source, target)
    got = {}
    for bucket in Resharder(plan, rank, mine, dtype=torch.float32):
        got.update(bucket)
    return all(torch.equal(got[n], t) for n, t in full.items()) and len(got) == len(full)


def test_the_shards_of_fsdp2_are_those_of_the_layout():
    assert run_ranks(4, fsdp) == [True] * 4
    assert np.all(run_ranks(3, fsdp))
