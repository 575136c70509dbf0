"""Roles of kind ``value``: a number before each response token."""

from bestiary.batch import Batch
from bestiary.roles.trained import TrainedRole


class ValueRole(TrainedRole):
    """A model with a value head under the name of a role."""

    def values(self, batch: Batch, into: str = "values") -> Batch:
        """The value before each response token under the current weights.

        Also the sample column ``<into>_after``: the value after the last token.
        """
        return self._forward(batch, {"values": into, "values_after": f"{into}_after"})
