"""What several estimators do to the rows that they are given."""

# Shape suffixes: B = rows, T = response tokens (padded on the right).

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from bestiary.batch import Rows
from bestiary.kit import shaped_rewards
from bestiary.protocols import Stat


def live_tokens(x: Rows) -> Tensor:
    """[B, T] bool: tokens that the policy sampled, of rows that have a reward."""
    return x.mask & x["valid"].bool()[:, None]


def sequence_rewards(x: Rows, scalars: Mapping[str, Any]) -> tuple[Tensor, dict[str, Stat]]:
    """([B] rewards with the KL of the whole response inside, metrics)."""
    rewards_BT, stats = shaped_rewards(x, scalars)
    return rewards_BT.sum(-1), stats


def bootstrap(x: Rows, treatment: str) -> Tensor | None:
    """[B] the value after the last token of responses that were cut, 0 for the others.

    Raises:
        KeyError: if it is asked for and the batch does not have it.
    """
    if treatment == "terminal":
        return None
    after_B = x["values_after"].double()
    return torch.where(x["truncated"].bool(), after_B, torch.zeros_like(after_B))
