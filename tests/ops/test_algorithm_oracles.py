"""Whole formulae of the papers, put together from the ops."""

import itertools
import json
from pathlib import Path

import pytest
import torch

from bestiary.ops.groups import group_advantages
from bestiary.ops.kl import kl_estimate, kl_loss
from bestiary.ops.lagrange import combine
from bestiary.ops.masking import whiten
from bestiary.ops.policy import clipped_surrogate, reinforce
from bestiary.ops.returns import discounted_returns, gae, terminal_rewards
from bestiary.ops.weights import loss_weights, weighted_sum

CASES = json.loads((Path(__file__).parents[1] / "cases/oracles.json").read_text())["cases"]
ORACLES = {case["name"]: case for case in CASES}


def f64(values):
    return torch.tensor(values, dtype=torch.float64)


def close(got, wanted):
    wanted = wanted if isinstance(wanted, torch.Tensor) else f64(wanted)
    torch.testing.assert_close(got, wanted, rtol=1e-12, atol=1e-12)


def case(name):
    return ORACLES[name]["inputs"], ORACLES[name]["expected"]


def test_remax_paper_response_level():
    given, wanted = case("remax_paper_response_level")
    logprobs, mask = f64(given["logp"]), f64(given["mask"]).bool()
    advantages = f64(given["reward_sampled"]) - f64(given["reward_greedy"])
    close(advantages, wanted["advantage"])
    weights = loss_weights(mask, mode="seq-mean-token-sum")
    close(weighted_sum(reinforce(logprobs, advantages, mask), weights), wanted["loss"])


@pytest.mark.parametrize(
    "name", ["remax_official_code_onestep_kl_gamma1.0", "remax_official_code_clipped_gamma1.0"]
)
def test_remax_official_code(name):
    given, wanted = case(name)
    mask = f64(given["mask"]).bool()
    kl = kl_estimate(f64(given["logp_old"]), f64(given["ref_logp"]), mask)
    gap = f64(given["reward_sampled"]) - f64(given["reward_greedy"])
    gap = gap.clamp(-given["clip_reward"], given["clip_reward"])
    returns = torch.where(mask, gap[:, None] - given["beta"] * kl, 0.0)
    close(returns, wanted["returns"])
    losses = reinforce(f64(given["logp"]), returns, mask)
    close(weighted_sum(losses, loss_weights(mask)), wanted["loss"])


def test_remax_verl_full_kl_in_reward():
    given, wanted = case("remax_verl_full_kl_in_reward")
    mask = f64(given["mask"]).bool()
    returns = discounted_returns(f64(given["token_rewards"]), mask)
    close(returns, wanted["returns"])
    close(
        torch.where(mask, returns - f64(given["reward_greedy"])[:, None], 0.0), wanted["advantages"]
    )


@pytest.mark.parametrize("name", [n for n in ORACLES if n.startswith("safe_rlhf_actor")])
def test_safe_rlhf_actor(name):
    given, wanted = case(name)
    mask = f64([given["mask"]]).bool()
    old = f64([given["old_logp"]])
    beta = given["kl_coeff"] * (0.5 if given["kl_half"] else 1.0)
    kl = beta * kl_estimate(old, f64([given["ref_logp"]]), mask)
    bound = given["clip_range_score"]
    parts = {}
    for what, sign, key in (("reward", -1, "reward"), ("cost", 1, "cost")):
        tokens = sign * kl + terminal_rewards(f64([given[key]]).clamp(-bound, bound), mask)
        close(tokens[0], wanted[f"token_{key}s"])
        advantages, returns = gae(
            tokens,
            f64([given[f"{what}_values"]]),
            mask,
            gamma=given["gamma"],
            lam=given["gae_lambda"],
        )
        close(advantages[0], wanted[f"{what}_advantages"])
        close(returns[0], wanted[f"{what}_returns"])
        parts[what] = advantages
    advantages = combine(parts["reward"], parts["cost"], given["lam"])
    close(advantages[0], wanted["advantages"])
    clip = given["clip"]
    losses = clipped_surrogate(
        f64([given["new_logp"]]), old, advantages, mask, clip_low=clip, clip_high=clip
    )
    close(weighted_sum(losses, loss_weights(mask)), wanted["actor_loss"])


def test_safe_rlhf_ptx():
    given, wanted = case("safe_rlhf_ptx")
    mask = f64([given["mask"]]).bool()
    loss = weighted_sum(f64([given["token_nll"]]), loss_weights(mask))
    close(loss, wanted["ptx_loss"])
    close(given["rl_loss"] + given["ptx_coeff"] * loss, wanted["total"])


def test_grpo_loss_seqmean_k3():
    given, wanted = case("grpo_loss_seqmean_k3")
    mask = f64(given["mask"]).bool()
    now, old = f64(given["new_logp"]), f64(given["old_logp"])
    close(kl_estimate(now, f64(given["ref_logp"]), mask, kind="k3"), wanted["k3"])
    losses = clipped_surrogate(now, old, f64(given["advantages"]), mask)
    losses = losses + given["beta"] * kl_loss(now, f64(given["ref_logp"]), mask)
    weights = loss_weights(mask, mode="seq-mean-token-mean")
    close(weighted_sum(losses, weights), wanted["loss"])


def test_dr_grpo_loss_const_norm():
    given, wanted = case("dr_grpo_loss_const_norm")
    mask = f64(given["mask"]).bool()
    losses = clipped_surrogate(
        f64(given["new_logp"]), f64(given["old_logp"]), f64(given["advantages"]), mask
    )
    weights = loss_weights(mask, mode="seq-mean-token-sum-norm", length_norm=given["L_max"])
    close(weighted_sum(losses, weights), wanted["loss"])


def test_reinforce_pp_openrlhf():
    given, wanted = case("reinforce_pp_openrlhf")
    mask = f64(given["mask"]).bool()
    rewards = terminal_rewards(f64(given["rewards"]), mask) - given["beta"] * f64(given["kl"])
    returns = discounted_returns(rewards, mask, gamma=given["gamma"])
    close(returns, wanted["returns"])
    close(whiten(returns, mask, ddof=0, eps_mode="var_floor"), wanted["advantages"])


def test_reinforce_pp_baseline():
    given, wanted = case("reinforce_pp_baseline")
    mask = f64(given["mask"]).bool()
    advantages = group_advantages(f64(given["rewards"]), torch.tensor(given["groups"]))
    spread = advantages[:, None].expand(mask.shape)
    close(whiten(spread, mask, ddof=0, eps_mode="var_floor"), wanted["advantages"])


def bandit_gradient(logits, rewards, size, **options):
    """Expected gradient of mean return, over all groups of ``size`` actions."""
    logprobs = torch.log_softmax(logits, 0)
    loss = f64(0.0)
    mask = torch.ones(size, 1, dtype=torch.bool)
    weights = loss_weights(mask, mode="seq-mean-token-sum")
    for actions in itertools.product(range(3), repeat=size):
        picked = logprobs[list(actions)].unsqueeze(1)
        groups = torch.zeros(size, dtype=torch.int64)
        advantages = group_advantages(rewards[list(actions)], groups, **options)
        probability = picked.detach().sum().exp()
        loss = loss + probability * weighted_sum(reinforce(picked, advantages, mask), weights)
    return -torch.autograd.grad(loss, logits)[0]


@pytest.mark.parametrize(
    ("key", "options"),
    [
        ("rloo_expected", {"baseline": "leave_one_out"}),
        ("grpo_nostd_expected", {}),
        ("true_gradient", {"baseline": "none"}),
    ],
)
def test_enumerated_gradient_bandit3(key, options):
    given, wanted = case("enumerated_gradient_bandit3")
    logits, rewards = f64(given["logits"]).requires_grad_(), f64(given["rewards"])
    close(bandit_gradient(logits, rewards, given["K"], **options), wanted[key])


def test_enumerated_gradient_bandit3_grpo_with_deviation_is_another_vector():
    given, wanted = case("enumerated_gradient_bandit3")
    logits, rewards = f64(given["logits"]).requires_grad_(), f64(given["rewards"])
    got = bandit_gradient(logits, rewards, given["K"], scale="std", eps=1e-6)
    close(got, wanted["grpo_std_expected"])


def test_enumerated_gradient_bandit3_remax():
    given, wanted = case("enumerated_gradient_bandit3")
    logits, rewards = f64(given["logits"]).requires_grad_(), f64(given["rewards"])
    advantages = rewards - rewards[given["greedy_action"]]
    got = bandit_gradient(logits, advantages, 1, baseline="none")
    close(got, wanted["remax_expected"])
    close(got, wanted["true_gradient"])
