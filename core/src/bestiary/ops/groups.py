"""Advantages relative to the other samples of the same prompt."""

# Shape suffixes: B = sequences in the batch, N = those of them that are valid, sorted by group and
# reward, K = groups.

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float, Int, Real
from torch import Tensor

from bestiary.ops._common import Number, one_of, one_per_row, widen

Baseline = Literal["mean", "leave_one_out", "none", "length_weighted"]
Scale = Literal["none", "std", "leave_one_out_std", "batch_std"]
Singleton = Literal["zero", "raw", "scaled"]


def group_advantages(
    rewards: Real[Tensor, " B"],
    groups: Int[Tensor, " B"],
    *,
    baseline: Baseline = "mean",
    scale: Scale = "none",
    ddof: int = 1,
    eps: Number = 1e-6,
    singleton: Singleton = "zero",
    valid: Bool[Tensor, " B"] | None = None,
    lengths: Real[Tensor, " B"] | None = None,
) -> Float[Tensor, " B"]:
    """Compare each sample's reward with those of its group.

    A_i = (r_i − b_i) / s_i, with statistics in float64 over the valid samples that share a label.

    baseline b_i: "mean" of the group (GRPO, arXiv:2402.03300); "leave_one_out", mean of the others
    (RLOO, arXiv:2402.14740); "length_weighted", Σ l·r / Σ l (OPO, arXiv:2505.23585; the plain mean
    where all lengths are 0); "none", 0.

    scale s_i: "none", 1 (Dr.GRPO, arXiv:2503.20783); "std", the group's deviation + ε (GRPO; the
    paper leaves ddof and ε open); "leave_one_out_std", the deviation of the others + ε (NeMo-RL);
    "batch_std", the deviation of all valid rewards + ε (TRL, Lite PPO, arXiv:2508.08221). The last
    two leave a sample unscaled where that deviation is 0.

    A group whose largest reward equals its smallest gets exactly 0, as soon as a statistic of the
    group is used (any baseline but "none", or a group's deviation); there is no other threshold.
    The result does not depend on the order of the samples, to the last bit.

    Args:
        rewards: [B], one a sequence; invalid ones are ignored, NaN included.
        groups: [B] int64, label of the group, any values in any order.
        baseline: what is subtracted.
        scale: what divides.
        ddof: 1 for the unbiased deviation, 0 for that of the population.
        eps: added to a deviation, ≥ 0.
        singleton: advantage of the only valid sample of a group, when a statistic of the group is
            used: "zero"; "raw", its reward; "scaled", its reward with baseline 0 and group
            deviation 1 (verl).
        valid: [B] bool, samples with a usable reward; None takes all. The others leave every
            statistic and get 0.
        lengths: [B], tokens of each response; for "length_weighted".

    Returns:
        [B] float32 (float64 for float64 rewards).

    Raises:
        ValueError: if an option is unknown, ``lengths`` is missing, or a valid reward is not
            finite.
    """
    one_of("baseline", baseline, get_args(Baseline))
    one_of("scale", scale, get_args(Scale))
    one_of("singleton", singleton, get_args(Singleton))
    if ddof not in (0, 1):
        raise ValueError(f"ddof must be 0 or 1, got {ddof}")
    rows = rewards.shape[0]
    one_per_row(
        "group_advantages", rows, rewards=rewards, groups=groups, valid=valid, lengths=lengths
    )
    if baseline == "length_weighted" and lengths is None:
        raise ValueError("baseline='length_weighted' needs lengths=, the tokens of each response")

    kept = torch.arange(rows, device=rewards.device) if valid is None else valid.nonzero()[:, 0]
    group = _Groups.sort(rewards.double()[kept], groups[kept])
    unit, divisor = _scales(group, scale, ddof, float(eps))
    lengths_N = None if lengths is None else lengths.double()[kept][group.order]
    advantages_N = _centred(group, baseline, lengths_N) / divisor
    if baseline != "none" or scale in ("std", "leave_one_out_std"):
        alone_N = {
            "zero": torch.zeros_like(group.rewards),
            "raw": group.rewards,
            "scaled": group.rewards / unit,
        }[singleton]
        advantages_N = torch.where(group.low == group.high, 0.0, advantages_N)
        advantages_N = torch.where(group.size == 1, alone_N, advantages_N)

    (like,) = widen(rewards)
    result = torch.zeros_like(like)
    result[kept[group.order]] = advantages_N.to(like.dtype)
    return result


@dataclass(frozen=True, slots=True)
class _Groups:
    """The valid rewards sorted by group and value, so that sums do not depend on arrival."""

    order: Tensor  # [N] position of each among the valid samples
    rewards: Tensor  # [N] float64
    member: Tensor  # [N] group of each, 0 … K−1
    start: Tensor  # [N] where its group begins
    size: Tensor  # [N] valid samples of its group

    @classmethod
    def sort(cls, rewards: Tensor, groups: Tensor) -> "_Groups":
        if not bool(rewards.isfinite().all()):
            bad = int((~rewards.isfinite()).sum())
            raise ValueError(
                f"{bad} valid rewards are NaN or infinite; mark samples without a usable reward "
                "with valid=, for example valid=rewards.isfinite()"
            )
        order = rewards.argsort(stable=True)
        order = order[groups[order].argsort(stable=True)]
        _, member, size = torch.unique_consecutive(
            groups[order], return_inverse=True, return_counts=True
        )
        start = size.cumsum(0) - size
        return cls(order, rewards[order], member, start[member], size[member])

    @property
    def low(self) -> Tensor:
        return self.rewards[self.start]

    @property
    def high(self) -> Tensor:
        return self.rewards[self.start + self.size - 1]

    def sum(self, x_N: Tensor) -> Tensor:
        """Sum over the group, given back to each of its members."""
        return torch.zeros_like(x_N).index_add(0, self.member, x_N)[self.member]

    def mean(self) -> Tensor:
        return self.sum(self.rewards) / self.size


def _centred(group: _Groups, baseline: str, lengths_N: Tensor | None) -> Tensor:
    if baseline == "none":
        return group.rewards
    if baseline == "length_weighted" and lengths_N is not None:
        total = group.sum(lengths_N)
        weighted = group.sum(lengths_N * group.rewards) / total.masked_fill(total == 0, 1.0)
        return group.rewards - torch.where(total == 0, group.mean(), weighted)
    centred = group.rewards - group.mean()
    if baseline == "leave_one_out":  # r − mean of the others = n/(n − 1)·(r − mean of all)
        return centred * group.size / (group.size - 1).clamp(min=1)
    return centred


def _scales(group: _Groups, scale: str, ddof: int, eps: float) -> tuple[float | Tensor, Tensor]:
    """What divides where the group deviation is 1 (a sample alone), and what divides elsewhere."""
    one = torch.ones_like(group.rewards)
    if scale == "none":
        return 1.0, one
    if scale == "batch_std":
        rewards = group.rewards
        if rewards.numel() < 2 or bool((rewards == rewards[0]).all()):
            return 1.0, one
        deviation = rewards.std(correction=ddof) + eps
        return deviation, deviation * one
    if scale == "std":
        square = group.sum((group.rewards - group.mean()).square())
        return 1.0 + eps, (square / (group.size - ddof).clamp(min=1)).sqrt() + eps
    return 1.0 + eps, _deviation_of_others(group, ddof, eps)


def _deviation_of_others(group: _Groups, ddof: int, eps: float) -> Tensor:
    """Deviation of the other members + ε, 1 where they are all equal.

    Walks round each group, one distance at a time: subtracting a member from the group's sum of
    squares would leave rounding noise where the others agree.
    """
    here = torch.arange(group.rewards.numel(), device=group.rewards.device) - group.start
    count = (group.size - 1).clamp(min=1)

    def over_others(center: Tensor, power: int) -> Tensor:
        total = torch.zeros_like(group.rewards)
        for distance in range(1, int(group.size.max()) if group.size.numel() else 0):
            other = group.rewards[group.start + (here + distance) % group.size]
            total = total + torch.where(distance < group.size, (other - center) ** power, 0.0)
        return total

    mean = over_others(torch.zeros_like(group.rewards), 1) / count
    deviation = (over_others(mean, 2) / (count - ddof).clamp(min=1)).sqrt()
    last = group.start + group.size - 1
    low = group.rewards[torch.where(here == 0, (group.start + 1).minimum(last), group.start)]
    high = group.rewards[torch.where(here == group.size - 1, (last - 1).maximum(group.start), last)]
    return torch.where(low == high, 1.0, deviation + eps)
