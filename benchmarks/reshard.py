"""Moving weights from training to generation layouts: bytes, seconds and memory, side by side.

Three ways on the same gloo ranks, alternating: ours (each rank gets what it lacks of its target), a
full all-gather (every rank gets everything, as DeepSpeed-Chat does), and DTensor's ``full_tensor``
parameter by parameter where the layout is one that DTensor has. Prints JSON.

    python benchmarks/reshard.py
    python benchmarks/reshard.py --mib 256 --world 4
"""

import argparse
import json
import resource
import time
from statistics import median

import torch
import torch.distributed as dist
from common import busy_cores, machine, say

from bestiary.distributed.resharding.execute import Resharder
from bestiary.distributed.resharding.layout import Layout, Parameter
from bestiary.distributed.resharding.mesh import Mesh
from bestiary.distributed.resharding.plan import choose_target, plan_reshard
from bestiary.testing.ranks import run_ranks

PAIRS = {
    4: [("fsdp4", "tp1"), ("tp4", "tp2"), ("fsdp2.tp2", "tp2"), ("fsdp4", "tp2"),
        ("pp2.tp2", "tp2")],
    8: [("fsdp8", "tp1"), ("fsdp4.tp2", "tp2"), ("tp4.dp2", "tp2"), ("fsdp8", "tp4"),
        ("pp2.tp4", "tp2")],
}  # fmt: skip
DEFAULTS = {("fsdp2.tp2", "tp2"), ("fsdp4.tp2", "tp2")}
"""The default actor layouts: tensor parallelism kept, row shards gathered in micro groups."""
LAYERS = 8


def parameters(mib: int) -> list[Parameter]:
    """A decoder of about that size in float32: matrices cut by rows and by columns."""
    width = int((mib * (1 << 20) / 4 / LAYERS / 12) ** 0.5) // 64 * 64
    made = []
    for i in range(LAYERS):
        made += [
            Parameter(f"{i}.qkv", (3 * width, width), 0, i),
            Parameter(f"{i}.o", (width, width), 1, i),
            Parameter(f"{i}.up", (4 * width, width), 0, i),
            Parameter(f"{i}.down", (width, 4 * width), 1, i),
            Parameter(f"{i}.norm", (width,), None, i),
        ]
    return made


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def timed(function) -> float:
    dist.barrier()
    began = time.perf_counter()
    function()
    dist.barrier()
    return time.perf_counter() - began


def one(rank: int, world: int, pair: tuple[str, str], mib: int, repeats: int) -> dict:
    torch.set_num_threads(1)
    train, generate = pair
    every = parameters(mib)
    source = Layout(Mesh.parse(train), LAYERS)
    target = choose_target(source, Layout(Mesh.parse(generate), LAYERS), every)
    plan = plan_reshard(every, source, target)
    mine = {
        p.name: torch.randn([b - a for a, b in box])
        for p in every
        if (box := source.box(p, rank)) is not None
    }
    flat = torch.cat([t.reshape(-1) for t in mine.values()])
    sizes = torch.tensor([flat.numel()])
    gathered = [torch.zeros_like(sizes) for _ in range(world)]
    dist.all_gather(gathered, sizes)
    most = max(int(s) for s in gathered)
    seen: dict[str, int] = {}

    def ours() -> None:
        moving = Resharder(plan, rank, mine, dtype=torch.float32)
        kept = {}
        for bucket in moving:
            kept.update(bucket)
        seen["received"] = moving.traffic.received_bytes
        seen["buffer"] = moving.traffic.buffer_bytes

    def full() -> None:
        padded = torch.zeros(most)
        padded[: flat.numel()] = flat
        out = torch.empty(world * most)
        dist.all_gather_into_tensor(out, padded)

    tensors = dtensors(source.mesh, every, mine)

    def single() -> None:
        kept = {name: t.full_tensor() for name, t in (tensors or {}).items()}
        del kept

    times = {"ours": [], "full": [], "full_tensor": []}
    for way in (ours, full, single):  # warm
        way()
    before = peak_bytes()
    for _ in range(repeats):
        times["ours"].append(timed(ours))
        times["full"].append(timed(full))
        if tensors is not None:
            times["full_tensor"].append(timed(single))
    return {
        "ours_s": median(times["ours"]),
        "full_s": median(times["full"]),
        "full_tensor_s": median(times["full_tensor"]) if times["full_tensor"] else None,
        "received": seen["received"],
        "bound": plan.received()[rank] * 4,
        "full_received": (world - 1) * most * 4,
        "target": sum(
            p.numel * 4 if (b := target.box(p, rank)) is None else volume_bytes(b) for p in every
        ),
        "buffer": seen["buffer"],
        "grew": peak_bytes() - before,
    }


def volume_bytes(box) -> int:
    out = 4
    for start, stop in box:
        out *= stop - start
    return out


def dtensors(mesh: Mesh, every: list[Parameter], mine: dict[str, torch.Tensor]):
    """The shards as DTensors, where rows and columns are not cut twice and there are no stages."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate, Shard

    if mesh.pp > 1 or (mesh.fsdp > 1 and mesh.tp > 1):
        return None
    sizes, names = (mesh.dp, mesh.fsdp, mesh.tp), ("dp", "fsdp", "tp")
    device = init_device_mesh("cpu", sizes, mesh_dim_names=names)
    made = {}
    for p in every:
        placements = [Replicate(), Shard(0) if mesh.fsdp > 1 else Replicate()]
        cut = mesh.tp > 1 and p.tp_dim is not None
        placements.append(Shard(p.tp_dim) if cut else Replicate())
        made[p.name] = DTensor.from_local(
            mine[p.name], device, placements, run_check=False, shape=p.shape,
            stride=torch.empty(p.shape, device="meta").stride(),
        )  # fmt: skip
    return made


def summary(pair: tuple[str, str], rows: list[dict]) -> dict:
    ours, full = max(r["ours_s"] for r in rows), max(r["full_s"] for r in rows)
    received, everything = (max(r[k] for r in rows) for k in ("received", "full_received"))
    single = rows[0]["full_tensor_s"]
    byte_ratio = received / everything
    return {
        "train": pair[0],
        "generate": pair[1],
        "at_the_bound": all(r["received"] == r["bound"] for r in rows),
        "received_mib": round(received / 2**20, 1),
        "full_mib": round(everything / 2**20, 1),
        "byte_ratio": round(byte_ratio, 3),
        "ours_s": round(ours, 4),
        "full_s": round(full, 4),
        "full_tensor_s": None
        if single is None
        else round(max(r["full_tensor_s"] for r in rows), 4),
        "time_ratio": round(ours / full, 3),
        "time_over_byte_ratio": round(ours / full / byte_ratio, 2) if byte_ratio else None,
        "default": pair in DEFAULTS,
        "buffer_mib": round(max(r["buffer"] for r in rows) / 2**20, 1),
    }


def main() -> None:
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--mib", type=int, nargs="+", default=[64, 256])
    p.add_argument("--world", type=int, nargs="+", default=[4, 8], choices=list(PAIRS))
    p.add_argument("--repeats", type=int, default=5)
    a = p.parse_args()
    out = {"machine": machine(), "settings": vars(a), "foreign_cores": busy_cores(), "pairs": []}
    for world in a.world:
        for mib in a.mib:
            for pair in PAIRS[world]:
                rows = run_ranks(world, one, pair, mib, a.repeats, timeout_s=300)
                found = {"world": world, "mib": mib, **summary(pair, rows)}
                out["pairs"].append(found)
                say(
                    f"{world} ranks, {mib} MiB, {pair[0]} -> {pair[1]}: bytes "
                    f"{found['byte_ratio']}, time {found['time_ratio']} of a full all-gather"
                )
    print(json.dumps(out, indent=1))


if __name__ == "__main__":
    main()
