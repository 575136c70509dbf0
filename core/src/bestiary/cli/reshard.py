"""``bestiary reshard``: what it costs to bring weights from training to generation, on paper."""

import argparse
import json
import sys
import time
from dataclasses import asdict
from typing import Any

from bestiary.distributed.resharding.cost import Cost, Counted, compare
from bestiary.distributed.resharding.grouping import Target
from bestiary.distributed.resharding.layout import Layout
from bestiary.distributed.resharding.mesh import Mesh
from bestiary.distributed.resharding.shapes import find_shape, parameters_of
from bestiary.errors import PlacementError

ITEMSIZE = {"bf16": 2, "fp32": 4}
_WAYS = 4
_SHOWN = 8
"""Groups that are listed, and ranks of a group."""


def reshard(arguments: argparse.Namespace) -> int:
    """Print the comparison; returns the exit status.

    Raises:
        UserError: for an unknown model or a layout that cannot be.
    """
    shape = find_shape(arguments.model)
    train, generate = Mesh.parse(arguments.train), Mesh.parse(arguments.generate)
    if generate.fsdp > 1 or generate.dp > 1:
        raise PlacementError(
            f"--generate {arguments.generate}: generation has the dims pp and tp; its replicas are "
            "what is left of the ranks"
        )
    began = time.perf_counter()
    parameters = parameters_of(shape)
    source, layout = Layout(train, shape.layers), Layout(generate, shape.layers)
    ways, counted, target = compare(parameters, source, layout, ITEMSIZE[arguments.dtype])
    seconds = time.perf_counter() - began
    total = sum(p.numel for p in parameters) * ITEMSIZE[arguments.dtype]
    if arguments.json:
        sys.stdout.write(json.dumps(_as_json(ways, counted, total, train, generate), indent=1))
        sys.stdout.write("\n")
        return 0
    _show(arguments, ways, counted, target, source, total, seconds)
    return 0


def _as_json(
    ways: list[Cost], counted: Counted, total: int, train: Mesh, generate: Mesh
) -> dict[str, Any]:
    return {
        "train": str(train),
        "generate": str(generate),
        "ranks": train.size,
        "weights_bytes": total,
        "ways": [asdict(way) for way in ways],
        "received_bytes": {str(rank): n for rank, n in counted.received.items()},
    }


def _show(
    arguments: argparse.Namespace,
    ways: list[Cost],
    counted: Counted,
    target: Target,
    source: Layout,
    total: int,
    seconds: float,
) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    title = (
        f"{arguments.model}, {gib(total)} in {arguments.dtype}, {source.mesh.size} ranks: "
        f"training {source.mesh} → generation {arguments.generate}"
    )
    table = Table(title=title, title_justify="left")
    for column in ("way", "received by a rank", "of M", "peak weights", "kept beside"):
        table.add_column(column, justify="left" if column == "way" else "right")
    for way in ways:
        table.add_row(
            way.way,
            gib(way.received),
            f"{way.received / total:.3f}",
            gib(way.peak),
            gib(way.redundant),
        )
    console.print(table)
    if len(ways) < _WAYS:
        console.print(_left_out(source.mesh))
    spread = sorted(counted.received.values())
    if spread[0] != spread[-1]:
        console.print(f"ours differs by rank: {gib(spread[0])} to {gib(spread[-1])}")
    console.print(f"micro data-parallel groups  {_some(target.micro_groups(source))}")
    console.print(f"generation groups           {_some(target.tensor_groups())}")
    console.print(f"planned in {seconds:.2f} s")


def _left_out(train: Mesh) -> str:
    if train.fsdp > 1:
        return "HybridFlow's other formulae are for training without row shards (fsdp)"
    return "HybridFlow's formula is for generation degrees whose product divides training's pp·tp"


def _some(groups: list[list[int]]) -> str:
    """The first groups, and of each the first ranks."""
    shown = " ".join(
        "\\[" + ",".join(map(str, g[:_SHOWN])) + (",…" if len(g) > _SHOWN else "") + "]"
        for g in groups[:_SHOWN]
    )
    more = len(groups) - _SHOWN
    return shown + (f" and {more} more" if more > 0 else "")


def gib(size: float) -> str:
    """Bytes for people."""
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= scale:
            return f"{size / scale:.2f} {unit}"
    return f"{size:.0f} B"
