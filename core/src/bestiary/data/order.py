"""The order in which prompts are visited: a permutation for each epoch, and the place in it."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bestiary.errors import CheckpointError, DataError


def epoch_order(size: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """[size] the order of one epoch: a permutation that depends on (seed, epoch) only."""
    return np.random.default_rng([_unsigned(seed), epoch]).permutation(size).astype(np.int64)


def _unsigned(seed: int) -> int:
    return seed & 0xFFFF_FFFF_FFFF_FFFF


class EpochOrder:
    """Walks through epoch after epoch; each index comes once an epoch.

    The saved state is (epoch, position), and the order that they refer to is made again from
    (seed, epoch), so a resumed run sees exactly the rest of the same epoch.

    Args:
        size: number of prompts, at least 1.
        seed: of the permutations.
        shuffle: False visits them as they stand, in each epoch.
    """

    def __init__(self, size: int, seed: int, *, shuffle: bool = True) -> None:
        if size < 1:
            raise DataError("an order over 0 prompts: the source is empty")
        self.size = size
        self.seed = seed
        self.shuffle = shuffle
        self.epoch = 0
        self.position = 0
        self._current = self._order()

    def _order(self) -> NDArray[np.int64]:
        if not self.shuffle:
            return np.arange(self.size, dtype=np.int64)
        return epoch_order(self.size, self.seed, self.epoch)

    def next(self, n: int) -> NDArray[np.int64]:
        """The next ``n`` indices; goes on into the next epoch where this one ends."""
        parts: list[NDArray[np.int64]] = []
        wanted = n
        while wanted > 0:
            if self.position == self.size:
                self.epoch += 1
                self.position = 0
                self._current = self._order()
            part = self._current[self.position : self.position + wanted]
            self.position += len(part)
            wanted -= len(part)
            parts.append(part)
        return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)

    def state_dict(self) -> dict[str, Any]:
        """Epoch and position, with what the order depends on."""
        return {
            "size": self.size,
            "seed": self.seed,
            "shuffle": self.shuffle,
            "epoch": self.epoch,
            "position": self.position,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved place.

        Raises:
            CheckpointError: if the state belongs to another order.
        """
        for name, mine in (("size", self.size), ("seed", self.seed), ("shuffle", self.shuffle)):
            if state[name] != mine:
                raise CheckpointError(
                    f"the saved order of prompts has {name}={state[name]}, this run has {mine}",
                    hint="resume with the data and seed that the checkpoint was made with",
                )
        self.epoch = int(state["epoch"])
        self.position = int(state["position"])
        self._current = self._order()
