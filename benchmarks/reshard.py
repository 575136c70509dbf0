"""Moving weights from training to generation layouts: bytes, seconds and memory, side by side.

Three ways on the same gloo ranks, alternating: ours (each rank gets what it lacks of its target), a
full all-gather (every rank gets everything, as DeepSpeed-Chat does), and DTensor's ``full_tensor``
parameter by parameter where the layout is one that DTensor has. All storage is there before the
clock starts; memory is what each way takes beside it. Prints JSON.

    python benchmarks/reshard.py
    python benchmarks/reshard.py --mib 256 --world 4
"""

import argparse
import gc
import json
import time
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist
from common import busy_cores, machine, say

from bestiary.distributed.resharding.execute import Resharder
from bestiary.distributed.resharding.grouping import choose_target
from bestiary.distributed.resharding.layout import Layout, Parameter
from bestiary.distributed.resharding.mesh import Mesh
from bestiary.distributed.resharding.plan import plan_reshard
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
    """The most memory of this process since ``reset_peak``."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("no VmHWM in /proc/self/status")


def reset_peak() -> int:
    """Begin a new peak; returns the memory of now."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")
    return peak_bytes()


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
    # What the generator computes with: every way ends with the weights in here.
    boxes = {p.name: box for p in every if (box := target.box(p, rank)) is not None}
    storage = {name: torch.zeros([b - a for a, b in box]) for name, box in boxes.items()}
    moving = Resharder(plan, rank, mine, dtype=torch.float32, into=storage)
    tensors = dtensors(source.mesh, every, mine)
    ways = {"ours": lambda: sum(len(bucket) for bucket in moving)}
    full, most = full_gather(mine, world)
    ways["full"] = full
    if tensors is not None:

        def single() -> None:
            for name, tensor in tensors.items():
                whole = tensor.full_tensor()
                if name in boxes:
                    storage[name].copy_(whole[tuple(slice(a, b) for a, b in boxes[name])])

        ways["full_tensor"] = single
    peaks = {}
    for name, way in ways.items():  # warm, and measure the memory
        before = reset_peak()
        way()
        peaks[name] = peak_bytes() - before
    peaks["full"] += (world + 1) * most * 4  # what it gathers into, which was there before
    times = {name: [] for name in ways}
    for _ in range(repeats):
        for name, way in ways.items():
            times[name].append(timed(way))
    return {
        "seconds": {name: median(found) for name, found in times.items()},
        "peak": peaks,
        "received": moving.traffic.received_bytes,
        "bound": plan.received()[rank] * 4,
        "full_received": (world - 1) * most * 4,
        "buffer": moving.traffic.buffer_bytes,
    }


def full_gather(mine: dict[str, torch.Tensor], world: int):
    """One all-gather of everything into memory that is kept for it; and elements a rank sends."""
    sizes = torch.tensor([sum(t.numel() for t in mine.values())])
    found = [torch.zeros_like(sizes) for _ in range(world)]
    dist.all_gather(found, sizes)
    most = max(int(size) for size in found)
    padded, out = torch.zeros(most), torch.zeros(world * most)

    def full() -> None:
        start = 0
        for tensor in mine.values():
            padded[start : start + tensor.numel()] = tensor.reshape(-1)
            start += tensor.numel()
        dist.all_gather_single(out, padded)

    return full, most


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
    seconds = {w: max(r["seconds"][w] for r in rows) for w in rows[0]["seconds"]}
    peaks = {w: round(max(r["peak"][w] for r in rows) / 2**20, 1) for w in rows[0]["peak"]}
    received, everything = (max(r[k] for r in rows) for k in ("received", "full_received"))
    byte_ratio, time_ratio = received / everything, seconds["ours"] / seconds["full"]
    return {
        "train": pair[0],
        "generate": pair[1],
        "at_the_bound": all(r["received"] == r["bound"] for r in rows),
        "received_mib": round(received / 2**20, 1),
        "full_mib": round(everything / 2**20, 1),
        "byte_ratio": round(byte_ratio, 3),
        "seconds": {way: round(s, 4) for way, s in seconds.items()},
        "time_ratio": round(time_ratio, 3),
        "time_over_byte_ratio": round(time_ratio / byte_ratio, 2) if byte_ratio else None,
        "default": pair in DEFAULTS,
        "peak_mib": peaks,
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
