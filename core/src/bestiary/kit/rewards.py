"""Token rewards of a batch: the reward at the end, process rewards, and the KL to the reference."""

# Shape suffixes: B = rows, T = response tokens (padded on the right).

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from bestiary.protocols import Stat

if TYPE_CHECKING:
    from torch import Tensor

    from bestiary.batch import Rows

READS = frozenset({"token_rewards", "ref_logprobs", "old_logprobs", "rollout_logprobs"})
"""Columns that :func:`shaped_rewards` reads where they are there: an estimator's ``optional``."""


def shaped_rewards(
    x: "Rows", scalars: Mapping[str, Any], *, column: str = "reward", sign: float = -1.0
) -> tuple["Tensor", dict[str, Stat]]:
    """r_t = process reward_t + 1[t = last]·reward + sign·β·KL_t, 0 where masked.

    The KL compares ``old_logprobs`` (the rollout's where there are none) with ``ref_logprobs``.
    Where process rewards exist they are what the scorer gave to its spans and the sample's
    reward still falls on the last token. Invalid samples have zero rewards.

    Args:
        x: rows with the sample column ``column`` and the optional token columns of ``READS``.
        scalars: ``kl_coef`` and ``kl_kind`` of the estimator's call; without them no KL.
        column: sample column of the reward.
        sign: of the KL; Safe-RLHF's cost has +1.

    Returns:
        ([B, T] float64 token rewards, the metric ``kl/reward``: the mean over tokens of the KL).

    Raises:
        KeyError: if a KL is asked for and the batch has no ``ref_logprobs``.
    """
    import torch

    from bestiary.ops.kl import kl_estimate
    from bestiary.ops.returns import terminal_rewards

    mask_BT = x.mask
    valid_B = x["valid"].bool() if "valid" in x else torch.ones(x.size, dtype=torch.bool)
    rewards_BT = terminal_rewards(x[column].double().masked_fill(~valid_B, 0), mask_BT)
    if "token_rewards" in x and column == "reward":
        live_BT = mask_BT & valid_B[:, None]
        rewards_BT = rewards_BT + x["token_rewards"].double().masked_fill(~live_BT, 0)
    coef = float(scalars.get("kl_coef", 0.0))
    if coef == 0.0:
        return rewards_BT, {}
    policy_BT = x["old_logprobs"] if "old_logprobs" in x else x["rollout_logprobs"]
    kl_BT = kl_estimate(
        policy_BT.double(), x["ref_logprobs"].double(), mask_BT, kind=scalars["kl_kind"]
    )
    live_BT = mask_BT & valid_B[:, None]
    stat = Stat(float(kl_BT.masked_fill(~live_BT, 0).sum()), float(live_BT.sum()))
    return rewards_BT + sign * coef * kl_BT.masked_fill(~live_BT, 0), {"kl/reward": stat}
