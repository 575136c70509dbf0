"""Global statistics over the rows of all ranks, in a fixed order."""

from typing import TYPE_CHECKING, Protocol

from bestiary.protocols import Reduce

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import ProcessGroup


class Ranked(Protocol):
    """Anything that knows its place in a group."""

    @property
    def world(self) -> int:
        """Processes in the group."""
        ...


class LocalReduce:
    """:class:`bestiary.protocols.Reduce` where this process has all rows."""

    def sum(self, x: "Tensor") -> "Tensor":
        """``x`` itself."""
        return x

    def max(self, x: "Tensor") -> "Tensor":
        """``x`` itself."""
        return x


class DistReduce:
    """:class:`bestiary.protocols.Reduce` over a process group; every rank must call it alike.

    Sums are taken in float64 in the order of ranks, so the result is the same on every rank and
    from run to run; it does depend on how rows are split over ranks, by rounding within a rank.

    Args:
        group: None is the group of the whole worker group.
    """

    def __init__(self, group: "ProcessGroup | None" = None) -> None:
        self.group = group

    def sum(self, x: "Tensor") -> "Tensor":
        """The elementwise sum over the ranks, in the dtype of ``x``."""
        import torch

        wide = torch.float64 if x.is_floating_point() else torch.int64
        parts = self._gather(x.to(wide))
        total = parts[0].clone()
        for part in parts[1:]:
            total += part
        return total.to(x.dtype)

    def max(self, x: "Tensor") -> "Tensor":
        """The elementwise maximum over the ranks; NaN anywhere gives NaN."""
        import torch

        return torch.stack(self._gather(x)).amax(dim=0)

    def _gather(self, x: "Tensor") -> "list[Tensor]":
        import torch
        import torch.distributed as dist

        x = x.detach().contiguous()
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size(self.group))]
        dist.all_gather(parts, x, group=self.group)
        return parts


def reduce_over(seat: Ranked) -> Reduce:
    """The reduction of a worker group: nothing to do for a single process."""
    return LocalReduce() if seat.world == 1 else DistReduce()
