"""Estimators against worked numbers and against loops over single tokens."""

import math

import pytest
import torch

from bestiary.batch import Rows


def rows(mask, **columns):
    mask = torch.tensor(mask).bool()
    made = {name: torch.as_tensor(x, dtype=torch.float64) for name, x in columns.items()}
    made.setdefault("valid", torch.ones(len(mask), dtype=torch.bool))
    made.setdefault("response_len", mask.sum(-1))
    for name in ("group", "response_len"):
        if name in made:
            made[name] = made[name].long()
    made["valid"] = made["valid"].bool()
    return Rows(made, mask)


def wide(x, like):
    return x[:, None].expand(like.mask.shape).masked_fill(~like.mask, 0) if x.dim() == 1 else x


def close(got, wanted, tol=1e-12):
    wanted = torch.as_tensor(wanted, dtype=torch.float64)
    assert torch.allclose(got.double(), wanted, rtol=tol, atol=tol), (got, wanted)


def test_remax_as_in_the_original_code(kit):
    for name in ("onestep_kl_gamma1.0", "clipped_gamma1.0"):
        given, wanted = kit.case(f"remax_official_code_{name}")
        x = rows(
            given["mask"], reward=given["reward_sampled"], baseline_reward=given["reward_greedy"],
            old_logprobs=given["logp_old"], ref_logprobs=given["ref_logp"],
        )  # fmt: skip
        made = kit.estimator("remax")(x, kit.local, kl_coef=given["beta"], kl_kind="k1")
        close(made["advantages"], torch.tensor(wanted["returns"], dtype=torch.float64) * x.mask)


def test_remax_with_the_kl_to_go(kit):
    given, wanted = kit.case("remax_verl_full_kl_in_reward")
    other, _ = kit.case("remax_official_code_onestep_kl_gamma1.0")
    x = rows(
        given["mask"], reward=other["reward_sampled"], baseline_reward=given["reward_greedy"],
        old_logprobs=other["logp_old"], ref_logprobs=other["ref_logp"],
    )  # fmt: skip
    estimator = kit.estimator("remax", kl="accumulated", clip=None)
    made = estimator(x, kit.local, kl_coef=other["beta"], kl_kind="k1")
    close(made["advantages"], wanted["advantages"])


def test_remax_discounts_the_last_token_once(kit):
    x = rows([[1, 1, 1]], reward=[2.0], baseline_reward=[1.0])
    made = kit.estimator("remax", gamma=0.5)(x, kit.local)
    close(made["advantages"], [[0.125, 0.25, 0.5]])


def test_rloo(kit):
    given, wanted = kit.case("rloo_k4")
    x = rows([[1]] * 4, reward=given["rewards"], group=[0] * 4)
    close(kit.estimator("rloo")(x, kit.local)["advantages"], wanted["advantages"])


def test_rloo_has_the_kl_of_the_response_inside(kit):
    x = rows(
        [[1, 1], [1, 0]], reward=[1.0, 0.0], group=[0, 0],
        old_logprobs=[[-1.0, -2.0], [-1.0, 0.0]], ref_logprobs=[[-2.0, -2.5], [-0.5, 0.0]],
    )  # fmt: skip
    made = kit.estimator("rloo")(x, kit.local, kl_coef=0.1, kl_kind="k1")
    # R = 1 - 0.1·1.5, 0 - 0.1·(-0.5); A = ±(R0 - R1)
    close(made["advantages"], [0.8, -0.8])


def test_a_group_of_one_under_rloo(kit):
    x = rows([[1]], reward=[0.7], group=[0])
    assert kit.estimator("rloo")(x, kit.local)["advantages"].tolist() == [0.0]
    assert kit.estimator("rloo", singleton="raw")(x, kit.local)["advantages"].tolist() == [0.7]


def test_reinforce_pp(kit):
    given, wanted = kit.case("reinforce_pp_openrlhf")
    kl = torch.tensor(given["kl"], dtype=torch.float64)
    x = rows(
        given["mask"], reward=given["rewards"], old_logprobs=kl.tolist(),
        ref_logprobs=torch.zeros_like(kl).tolist(),
    )  # fmt: skip
    made = kit.estimator("reinforce_pp")(x, kit.local, kl_coef=given["beta"], kl_kind="k1")
    close(made["advantages"], wanted["advantages"], 1e-9)
    plain = kit.estimator("reinforce")(x, kit.local, kl_coef=given["beta"], kl_kind="k1")
    close(plain["advantages"], wanted["returns"])


def test_reinforce_pp_baseline(kit):
    given, wanted = kit.case("reinforce_pp_baseline")
    x = rows(given["mask"], reward=given["rewards"], group=given["groups"])
    made = kit.estimator("reinforce_pp_baseline")(x, kit.local)
    close(made["advantages"], wanted["advantages"], 1e-7)


def test_opo_by_hand(kit):
    x = rows([[1, 1, 1], [1, 0, 0]], reward=[1.0, 0.0], group=[0, 0])
    close(kit.estimator("opo")(x, kit.local)["advantages"], [0.25, -0.75])


def test_gpg_by_hand(kit):
    x = rows([[1]] * 4, reward=[1.0, 0.0, 0.0, 2.0], group=[0, 0, 1, 1])
    # alpha = 4 / 2
    close(kit.estimator("gpg")(x, kit.local)["advantages"], [1.0, -1.0, -2.0, 2.0])
    close(kit.estimator("gpg", f_norm=2.0)(x, kit.local)["advantages"], [0.5, -0.5, -1.0, 1.0])
    nothing = rows([[1]] * 2, reward=[0.0, 0.0], group=[0, 0])
    close(kit.estimator("gpg")(nothing, kit.local)["advantages"], [0.0, 0.0])


def test_pass_at_k_by_hand(kit):
    x = rows([[1]] * 6, reward=[1.0, 0.0, 0.5, 2.0, 2.0, 9.0], group=[0, 0, 0, 1, 1, 2])
    std = torch.tensor([1.0, 0.0, 0.5]).double().std()
    made = kit.estimator("pass_at_k")(x, kit.local)["advantages"]
    close(made, [0.5 / (float(std) + 1e-6), 0, 0, 0, 0, 0])
    made = kit.estimator("pass_at_k", scale=False)(x, kit.local)["advantages"]
    close(made, [0.5, 0, 0, 0, 0, 0])


def test_gdpo_normalises_each_part_apart(kit):
    x = rows([[1, 1], [1, 0]], reward=[0.0, 0.0], group=[0, 0])
    x = Rows(dict(x), x.mask, {"parts": [{"big": 100.0, "small": 0.0}, {"big": 0.0, "small": 0.1}]})
    plain = kit.estimator("gdpo", whiten="none", eps=0.0)(x, kit.local)["advantages"]
    close(plain, [[0.0, 0.0], [0.0, 0.0]])
    made = kit.estimator("gdpo", whiten="none", eps=0.0, weights={"small": 0.0})(x, kit.local)
    close(made["advantages"], [[math.sqrt(0.5)] * 2, [-math.sqrt(0.5), 0.0]])


def test_whitening_over_samples_counts_a_response_once(kit):
    # Leave-one-out: +2, -2; +1, -1. Mean 0, deviation sqrt((4+4+1+1)/3).
    lengths = [[1, 1, 1], [1, 0, 0], [1, 0, 0], [1, 1, 0]]
    x = rows(lengths, reward=[3.0, 1.0, 1.0, 0.0], group=[0, 0, 1, 1])
    made = kit.estimator("rloo", whiten="sample", whiten_eps=0.5)(x, kit.local)["advantages"]
    close(made, [v / (math.sqrt(10 / 3) + 0.5) for v in (2.0, -2.0, 1.0, -1.0)])
    # An invalid sample stays out of the mean and the deviation, and gets 0.
    x = x.with_columns(valid=torch.tensor([True, True, True, False]))
    made = kit.estimator("rloo", whiten="sample", whiten_eps=0.5)(x, kit.local)["advantages"]
    close(made, [2.0 / 2.5, -2.0 / 2.5, 0.0, 0.0])  # +2, -2 and a group of one
    text = {"parts": [{"a": v} for v in (3.0, 1.0, 1.0, 0.0)]}
    both = Rows(dict(x.with_columns(valid=torch.ones(4, dtype=torch.bool))), x.mask, text)
    made = kit.estimator("gdpo", whiten="sample", eps=0.0, whiten_eps=0.5)(both, kit.local)
    one = math.sqrt(0.5)  # each group's parts normalised: +-sqrt(1/2); deviation sqrt(4/2/3)
    expected = [v / (math.sqrt(2 / 3) + 0.5) for v in (one, -one, one, -one)]
    close(made["advantages"], expected)


def test_gdpo_without_parts_says_what_it_needs(kit):
    x = rows([[1]], reward=[0.0], group=[0])
    with pytest.raises(ValueError, match="parts"):
        kit.estimator("gdpo")(Rows(dict(x), x.mask, {"parts": [{}]}), kit.local)


def test_gae(kit):
    for name in ("gae_T4", "gae_T4_bootstrap"):
        given, wanted = kit.case(name)
        rewards = torch.tensor(given["rewards"], dtype=torch.float64).reshape(1, -1)
        steps, values = rewards.clone(), torch.tensor(given["values"], dtype=torch.float64)
        steps[:, -1] = 0.0
        after = float(given.get("bootstrap", 0.0) or 0.0)
        x = rows(
            torch.ones_like(rewards).tolist(), reward=rewards[:, -1].tolist(),
            token_rewards=steps.tolist(), values=values.reshape(1, -1).tolist(),
            values_after=[after], truncated=[1.0],
        )  # fmt: skip
        estimator = kit.estimator(
            "gae", gamma=given["gamma"], lam=given["lam"], whiten=False, truncated="bootstrap"
        )
        made = estimator(x, kit.local)
        close(made["advantages"], [wanted["advantages"]])


def test_a_cut_response_ends_or_goes_on(kit):
    x = rows(
        [[1, 1], [1, 1]], reward=[1.0, 1.0], values=[[0.0, 0.0], [0.0, 0.0]],
        values_after=[2.0, 2.0], truncated=[1.0, 0.0],
    )  # fmt: skip
    options = {"whiten": False, "gamma": 0.5, "lam": 1.0}
    made = kit.estimator("gae", truncated="bootstrap", **options)(x, kit.local)
    close(made["advantages"], [[1.0, 2.0], [0.5, 1.0]])
    made = kit.estimator("gae", **options)(x, kit.local)
    close(made["advantages"], [[0.5, 1.0], [0.5, 1.0]])


def test_vtrace_on_policy_has_the_returns_as_targets(kit):
    x = kit.make(invalid=False)
    same = x.with_columns(rollout_logprobs=x["old_logprobs"])
    made = kit.estimator("vtrace", whiten=False)(same, kit.local)
    plain = kit.estimator("gae", whiten=False, lam=1.0)(same, kit.local)
    close(made["returns"], plain["returns"], 1e-9)
    close(made["advantages"], plain["advantages"], 1e-9)
    assert made["vtrace/cut"].total == 0


def test_vtrace_by_a_loop(kit):
    x = kit.make(seed=3, invalid=False)
    made = kit.estimator("vtrace", whiten=False, gamma=0.9, rho_bar=0.8, c_bar=0.7)(x, kit.local)
    for i in range(x.size):
        length = int(x.mask[i].sum())
        rho = (x["old_logprobs"][i] - x["rollout_logprobs"][i]).exp()
        value = [*x["values"][i, :length].tolist(), 0.0]
        target = [0.0] * (length + 1)
        for t in reversed(range(length)):
            reward = float(x["reward"][i]) if t == length - 1 else 0.0
            delta = min(0.8, rho[t].item()) * (reward + 0.9 * value[t + 1] - value[t])
            trace = 0.9 * min(0.7, rho[t].item()) * (target[t + 1] - value[t + 1])
            target[t] = value[t] + delta + trace
            advantage = min(1.0, rho[t].item()) * (reward + 0.9 * target[t + 1] - value[t])
            assert made["advantages"][i, t].item() == pytest.approx(advantage, abs=1e-12)
            assert made["returns"][i, t].item() == pytest.approx(target[t], abs=1e-12)


def test_the_optimal_token_baseline_by_a_loop(kit):
    x = kit.make(seed=5)
    made = kit.estimator("otb")(x, kit.local)["advantages"]
    togo = kit.estimator("reinforce")(x, kit.local)["advantages"]
    width = x.mask.shape[1]
    for g in set(x["group"].tolist()):
        members = [i for i in range(x.size) if x["group"][i] == g and x["valid"][i]]
        weight = {}
        for i in members:
            total = 0.0
            for t in range(int(x.mask[i].sum())):
                p = math.exp(x["old_logprobs"][i, t].item())
                total += 1 - 2 * p + x["probs_squared"][i, t].item()
                weight[i, t] = total
        for t in range(width):
            here = [i for i in members if (i, t) in weight]
            if not here:
                continue
            mean = sum(weight[i, t] * togo[i, t].item() for i in here)
            mean /= sum(weight[i, t] for i in here) + 1e-8
            for i in here:
                wanted = togo[i, t].item() - mean
                if len(here) == 1:
                    wanted = togo[i, t].item()
                assert made[i, t].item() == pytest.approx(wanted, abs=1e-9)


def test_process_rewards_by_a_loop(kit):
    x = kit.make(seed=2, kl=True)
    made = kit.estimator("process")(x, kit.local)["advantages"]
    togo = kit.estimator("reinforce")(x, kit.local)["advantages"]
    for i in range(x.size):
        for t in range(x.mask.shape[1]):
            same = [
                togo[j, t].item() for j in range(x.size)
                if x["group"][j] == x["group"][i] and x.mask[j, t] and x["valid"][j]
            ]  # fmt: skip
            live = bool(x.mask[i, t] and x["valid"][i])
            wanted = togo[i, t].item() - sum(same) / len(same) if live else 0.0
            assert made[i, t].item() == pytest.approx(wanted, abs=1e-12)
