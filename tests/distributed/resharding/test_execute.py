"""Plans carried out by real gloo ranks: every pair of layouts, to the bit and to the byte."""

import numpy as np
import pytest
import torch

from bestiary.distributed.resharding import execute
from bestiary.distributed.resharding.execute import Resharder
from bestiary.distributed.resharding.grouping import choose_target, separate_target
from bestiary.distributed.resharding.layout import Layout, Parameter
from bestiary.distributed.resharding.mesh import Mesh
from bestiary.distributed.resharding.plan import plan_reshard
from bestiary.errors import EngineError
from bestiary.testing.ranks import run_ranks

PARAMETERS = [
    Parameter("embed", (37, 16), 0, tied=True),
    *(
        p
        for i in range(4)
        for p in (
            Parameter(f"{i}.q", (32, 16), 0, i, blocks=4),
            Parameter(f"{i}.k", (16, 16), 0, i, blocks=2, queries=4),
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


def check(rank, world, pairs, bucket_bytes, dtype, small_bytes):
    """Run each pair on this rank; returns (bytes as counted, as planned) of each."""
    out = []
    execute.SMALL_BYTES = small_bytes  # of this rank's own process
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
        size = dtype.itemsize
        alone = max(plan.needs(-(-small_bytes // size))) * size
        assert moving.traffic.buffer_bytes <= max(bucket_bytes, alone)
        if dtype == torch.float32:
            how = plan.handling(rank)
            assert moving.traffic.in_place == [n for n, h in how.items() if h == "in place"]
        else:
            assert moving.traffic.in_place == []
        out.append((moving.traffic.received_bytes, planned, moving.traffic.sent_bytes))
    return out


@pytest.mark.parametrize("world", [4, 8])
@pytest.mark.parametrize(
    ("bucket_bytes", "dtype", "small_bytes"),
    [
        (1 << 20, torch.float32, 1 << 16),
        (9000, torch.float32, 200),
        (1, torch.float32, 1),
        (9000, torch.bfloat16, 200),
        (9000, torch.bfloat16, 1 << 16),
    ],
    ids=["one bucket", "buckets", "each alone", "cast", "cast, packed"],
)
def test_every_pair_of_layouts_is_exact_and_at_the_bound(world, bucket_bytes, dtype, small_bytes):
    pairs = [(a, b) for a in SOURCES[world] for b in TARGETS if world % Mesh.parse(b).size == 0]
    found = run_ranks(world, check, pairs, bucket_bytes, dtype, small_bytes, timeout_s=240)
    for number, pair in enumerate(pairs):
        rows = [rank[number] for rank in found]
        assert [r[0] for r in rows] == [r[1] for r in rows], pair
        assert sum(r[0] for r in rows) == sum(r[2] for r in rows), pair


def test_uneven_shards_of_six_ranks():
    pairs = [("fsdp3.tp2", "tp2"), ("fsdp3.tp2", "tp1"), ("dp3.tp2", "tp2"), ("fsdp6", "tp2"),
             ("dp2.tp3", "tp2"), ("tp6", "tp3"), ("pp3.tp2", "pp2.tp3")]  # fmt: skip
    for small_bytes in (1, 400):
        for rank in run_ranks(6, check, pairs, 6000, torch.float32, small_bytes, timeout_s=120):
            assert [r[0] for r in rank] == [r[1] for r in rank]


def filled(rank, world, train, generate, dtype):
    """The target's own storage is filled, again with each new state of the source."""
    execute.SMALL_BYTES = 200
    source, layout = (Layout(Mesh.parse(text), layers=4) for text in (train, generate))
    target = choose_target(source, layout, PARAMETERS)
    plan = plan_reshard(PARAMETERS, source, target)
    mine = shards(source, rank)
    wanted = {p.name: b for p in PARAMETERS if (b := target.box(p, rank)) is not None}
    own = {n: torch.full([b - a for a, b in box], 7.0, dtype=dtype) for n, box in wanted.items()}
    moving = Resharder(plan, rank, mine, dtype=dtype, into=own, bucket_bytes=6000)
    for step in (1, 2):
        buffers = set()
        for bucket in moving:
            for name, tensor in bucket.items():
                assert tensor.data_ptr() == own[name].data_ptr()
            buffers |= set(bucket)
        assert buffers == set(wanted)
        for p in PARAMETERS:
            if p.name in wanted:
                assert torch.equal(own[p.name], (step * part(p, wanted[p.name])).to(dtype))
        for tensor in mine.values():  # an optimizer step, in place
            tensor.mul_(2.0)
    return moving.traffic.received_bytes == plan.received()[rank] * dtype.itemsize


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_generators_own_storage_is_filled_at_every_step(dtype):
    for train, generate in [("fsdp2.tp2", "tp2"), ("pp2.fsdp2", "tp4"), ("tp2.dp2", "tp2")]:
        assert run_ranks(4, filled, train, generate, dtype) == [True] * 4


def test_what_arrives_in_place_needs_no_memory():
    """fsdp2.tp2 to tp2: pieces come from where they lie to where they belong."""

    def memory(rank, world):
        execute.SMALL_BYTES = 1
        parameters = [Parameter(f"w{i}", (32, 8), 0) for i in range(4)]
        source = Layout(Mesh(fsdp=2, tp=2))
        target = choose_target(source, Layout(Mesh(tp=2)), parameters)
        plan = plan_reshard(parameters, source, target)
        mine = {p.name: part(p, source.box(p, rank)) for p in parameters}
        own = {p.name: torch.zeros(16, 8) for p in parameters}
        moving = Resharder(plan, rank, mine, dtype=torch.float32, into=own)
        assert sum(len(bucket) for bucket in moving) == 4
        assert set(plan.handling(rank).values()) == {"direct"}
        return moving.traffic.buffer_bytes, moving.traffic.received_bytes

    assert run_ranks(4, memory) == [(0, 4 * 8 * 8 * 4)] * 4


def apart(rank, world, trainers, generators):
    source = Layout(Mesh.parse(trainers), layers=4)
    target = separate_target(Layout(Mesh.parse(generators), layers=4, offset=source.mesh.size))
    plan = plan_reshard(PARAMETERS, source, target)
    moving = Resharder(plan, rank, shards(source, rank), dtype=torch.float32, bucket_bytes=4000)
    got = {}
    for bucket in moving:
        got.update({name: t.clone() for name, t in bucket.items()})
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


def test_what_does_not_fit_is_refused():
    source = Layout(Mesh(tp=2), layers=4)
    plan = plan_reshard(
        PARAMETERS, source, choose_target(source, Layout(Mesh(), layers=4), PARAMETERS)
    )
    mine = shards(source, 0)
    wrong = {p.name: torch.zeros(1) for p in PARAMETERS}
    with pytest.raises(EngineError, match=r"rank 0 must have embed of the shape \(19, 16\)"):
        Resharder(plan, 0, wrong, dtype=torch.float32)
    whole = {**mine, "embed": mine["embed"].to(torch.int64)}
    with pytest.raises(EngineError, match=r"embed is torch.int64 .*only floating point is cast"):
        Resharder(plan, 0, whole, dtype=torch.bfloat16)
    own = {p.name: torch.zeros(p.shape) for p in PARAMETERS}
    own["embed"] = torch.zeros(16, 37).t()
    with pytest.raises(EngineError, match="must be given embed contiguous"):
        Resharder(plan, 0, mine, dtype=torch.float32, into=own)
    del own["embed"]
    with pytest.raises(EngineError, match=r"must be given embed of the shape \(37, 16\), got None"):
        Resharder(plan, 0, mine, dtype=torch.float32, into=own)


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
        got.update({name: t.clone() for name, t in bucket.items()})
    return all(torch.equal(got[n], t) for n, t in full.items()) and len(got) == len(full)


def test_the_shards_of_fsdp2_are_those_of_the_layout():
    assert run_ranks(4, fsdp) == [True] * 4
    assert np.all(run_ranks(3, fsdp))


def sharded_twice(rank, world):
    """FSDP2 over tensor parallelism, as torch does it, is the nesting of the layout."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Linear(6, 16, bias=False), torch.nn.Linear(16, 7, bias=False)
    )
    full = {n: p.detach().clone() for n, p in net.named_parameters()}
    mesh = init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("fsdp", "tp"))
    parallelize_module(net, mesh["tp"], {"0": ColwiseParallel(), "1": RowwiseParallel()})
    fully_shard(net, mesh=mesh["fsdp"])
    parameters = [Parameter("0.weight", (16, 6), 0), Parameter("1.weight", (7, 16), 1)]
    source = Layout(Mesh(fsdp=world // 2, tp=2))
    mine = {}
    for p in parameters:
        local = dict(net.named_parameters())[p.name].to_local().detach()
        box = source.box(p, rank)
        assert torch.equal(local, full[p.name][tuple(slice(a, b) for a, b in box)])
        mine[p.name] = local
    target = choose_target(source, Layout(Mesh(tp=2)), parameters)
    plan = plan_reshard(parameters, source, target)
    own = {p.name: torch.zeros([b - a for a, b in target.box(p, rank)]) for p in parameters}
    for _ in Resharder(plan, rank, mine, dtype=torch.float32, into=own):
        pass
    for p in parameters:
        box = target.box(p, rank)
        assert torch.equal(own[p.name], full[p.name][tuple(slice(a, b) for a, b in box)])
    return True


@pytest.mark.parametrize("world", [4, 6, 8])
def test_the_shards_of_fsdp2_over_tensor_parallelism_are_those_of_the_layout(world):
    assert run_ranks(world, sharded_twice) == [True] * world
