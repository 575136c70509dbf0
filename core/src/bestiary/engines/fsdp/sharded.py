"""Weights, gradients and optimizer sharded over the ranks with FSDP2."""

from collections.abc import Iterator, Sequence
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard

from bestiary.engines.fsdp.layout import Piece, checkpoint_names, squared_norm


class Sharded:
    """Each rank has a range of rows of every parameter.

    Gradients are summed over the ranks after every micro-batch, in float32, so that a rank holds
    no more than one layer's whole gradient.

    Args:
        module: the root.
        layers: modules that are sharded on their own.
        dtype: what the module computes in; masters stay float32.
        trainable: False makes no gradients.
        world: number of ranks.
        device_type: ``cpu`` or ``cuda``.
        partial: parameters that require no gradient stay frozen.
    """

    skips_dummies = False

    def __init__(
        self,
        module: nn.Module,
        layers: Sequence[nn.Module],
        dtype: torch.dtype,
        *,
        trainable: bool,
        world: int,
        device_type: str,
        partial: bool = False,
    ) -> None:
        mesh = init_device_mesh(device_type, (world,), mesh_dim_names=("fsdp",))
        low = None if dtype == torch.float32 else dtype
        policy = MixedPrecisionPolicy(param_dtype=low, reduce_dtype=torch.float32)
        if not partial:
            module.requires_grad_(trainable)
        for unit in (*layers, module):
            fully_shard(unit, mesh=mesh, mp_policy=policy)
        root = cast("FSDPModule", module)
        if trainable:
            # Sums, never averages; the plain sum is also the one reduction that gloo has.
            for part in module.modules():
                if isinstance(part, FSDPModule):
                    part.set_gradient_divide_factor(1.0)
                    part.set_force_sum_reduction_for_comms(True)
            root.set_reduce_scatter_unused_params(True)
        self._all = {n: cast("DTensor", p) for n, p in checkpoint_names(module).items()}
        self._params = {n: p for n, p in self._all.items() if p.requires_grad or not partial}
        self._module = module
        self.weights = [p.to_local().detach() for p in self._params.values()]
        self.grads: list[Tensor] = []

    def zero(self) -> None:
        """Forget gradients."""
        self.grads = []
        for p in self._params.values():
            p.grad = None

    def free_gradients(self) -> int:
        """Drop this rank's shards; the next backward pass makes new ones."""
        held = [p.grad for p in self._params.values() if p.grad is not None]
        freed = sum(g.to_local().untyped_storage().nbytes() for g in cast("list[DTensor]", held))
        self.zero()
        return freed

    def after_backward(self) -> None:
        """Nothing: the backward pass has summed over the ranks."""

    def reduce(self) -> None:
        """Collect the local gradients."""
        self.grads = [
            torch.zeros_like(weight) if p.grad is None else cast("DTensor", p.grad).to_local()
            for p, weight in zip(self._params.values(), self.weights, strict=True)
        ]

    def squared_norm(self) -> Tensor:
        """[] float64, the same on every rank: each row is on one rank only."""
        norms = [squared_norm(g) for g in self.grads]
        total = torch.stack(norms).sum()
        dist.all_reduce(total)
        return total

    def publish(self) -> None:
        """Nothing: the masters are the module's own parameters."""

    def pieces(self) -> list[Piece]:
        """This rank's rows of every parameter."""
        found = []
        for unit, (name, p) in enumerate(self._params.items()):
            (placement,) = p.placements
            if not isinstance(placement, Shard) or placement.dim != 0:
                raise AssertionError(f"{name} is placed as {placement}; rows are expected")
            start = _start(p.shape[0], p.device_mesh.size(), p.device_mesh.get_local_rank())
            piece = Piece(name, tuple(p.shape), start, self.weights[unit], unit, 0)
            found.append(piece)
        return found

    def whole(self, *, trained: bool = False) -> Iterator[tuple[str, Tensor]]:
        """Gather one parameter after another; every rank must run through all of them."""
        for name, p in (self._params if trained else self._all).items():
            yield name, p.full_tensor().detach()


def _start(rows: int, world: int, rank: int) -> int:
    """First row of a rank's shard; ``torch.chunk`` gives ⌈rows / world⌉ to each rank in turn."""
    return min(rank * -(-rows // world), rows)
