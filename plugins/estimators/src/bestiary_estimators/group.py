"""Group-relative advantages."""

from collections.abc import Mapping

from torch import Tensor

from bestiary.batch import Rows
from bestiary.ops.groups import group_advantages
from bestiary.protocols import Configured, Reduce
from bestiary_estimators.options import GroupOptions


class GroupRelative(Configured):
    """Each reward against its group, one number for the whole response.

    Invalid samples stay out of the statistics and get 0; so does a group of equal rewards.
    """

    options: GroupOptions

    def __call__(self, x: Rows, reduce: Reduce, **scalars: float) -> Mapping[str, Tensor]:
        """[B] float64 advantages from the sample columns ``reward``, ``group`` and ``valid``."""
        o = self.options
        advantages_B = group_advantages(
            x["reward"],
            x["group"],
            baseline=o.baseline,
            scale=o.scale,
            ddof=o.ddof,
            eps=o.eps,
            singleton=o.singleton,
            valid=x["valid"],
            lengths=x["response_len"],
        )
        return {"advantages": advantages_B}
