"""V-trace: off-policy corrected value targets and advantages."""

# Shape suffixes: B = sequences in the batch, T = response tokens (padded on the right).

import torch
from jaxtyping import Bool, Float, Real
from torch import Tensor

from bestiary.ops._common import Number, exp_ratio, live, same_shape, widen, within
from bestiary.ops._scan import next_live, reverse_scan
from bestiary.ops.returns import as_rows


def vtrace(
    log_rhos: Float[Tensor, "B T"],
    rewards: Real[Tensor, "B T"],
    values: Float[Tensor, "B T"],
    mask: Bool[Tensor, "B T"],
    gamma: Number,
    bootstrap: Float[Tensor, " B"] | Number | None,
    *,
    rho_bar: Number = 1.0,
    c_bar: Number = 1.0,
    rho_pg: Number = 1.0,
) -> tuple[Float[Tensor, "B T"], Float[Tensor, "B T"]]:
    """Estimate values and advantages of the current policy from another policy's samples.

    δ_t = min(ρ̄, ρ_t)·(r_t + γ·V_{t+1} − V_t)
    v_t = V_t + δ_t + γ·min(c̄, ρ_t)·(v_{t+1} − V_{t+1})
    A_t = min(ρ_pg, ρ_t)·(r_t + γ·v_{t+1} − V_t)

    with ρ_t = π(a_t)/μ(a_t) and t+1 the next unmasked token; after the last one v = V = bootstrap.

    Source: Espeholt et al. 2018, arXiv:1802.01561, eq. 1 (targets) and section 4.2 (advantages).
    Differs from it in stepping over tokens that the policy did not produce, as in ``gae``.
    On-policy (ρ = 1) the targets are the discounted returns, bootstrapped.

    Args:
        log_rhos: [B, T], log π − log μ for each token, nats; masked values are ignored.
        rewards: [B, T], reward for each token; masked values are ignored.
        values: [B, T], critic value before each token; masked values are ignored.
        mask: [B, T] bool, True on the tokens that the policy sampled; gaps are allowed.
        gamma: discount per sampled token, in [0, 1].
        bootstrap: [B] or scalar, value after the last sampled token; None is 0.
        rho_bar: cut of the ratio in δ, > 0; it decides which policy the targets belong to.
        c_bar: cut of the trace, ≥ 0; it decides only how fast they are reached.
        rho_pg: cut of the ratio in the advantages, > 0.

    Returns:
        targets: [B, T] float32 (float64 if an input is), exactly 0 where masked; not detached.
        advantages: [B, T], the same.

    Raises:
        ValueError: if ``gamma`` is outside [0, 1] or a cut is negative.
    """
    within("gamma", gamma, 0, 1)
    for option, cut in {"rho_bar": rho_bar, "c_bar": c_bar, "rho_pg": rho_pg}.items():
        within(option, cut, 0, float("inf"))
    same_shape("vtrace", log_rhos=log_rhos, rewards=rewards, values=values, mask=mask)
    log_rhos, rewards, values = widen(log_rhos, rewards, values)
    rewards, values = live(rewards, mask), live(values, mask)
    rho_BT = exp_ratio(live(log_rhos, mask))
    last_B = as_rows(bootstrap, values)
    td_BT = rewards + gamma * next_live(values, mask, last_B) - values
    delta_BT = live(rho_BT.clamp(max=rho_bar) * td_BT, mask)
    decay_BT = torch.where(mask, gamma * rho_BT.clamp(max=c_bar), 1.0)
    targets = live(values + reverse_scan(decay_BT, delta_BT), mask)
    ahead_BT = rewards + gamma * next_live(targets, mask, last_B) - values
    return targets, live(rho_BT.clamp(max=rho_pg) * ahead_BT, mask)
