"""Worked numbers of algorithms, through their own components."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from bestiary.batch import Rows
from bestiary.distributed.collectives import LocalReduce
from bestiary.plugins.manager import load_plugins
from bestiary.protocols import ModelOutput
from bestiary_grpo.algorithm import overlong
from bestiary_safe_rlhf.multiplier import Multiplier
from bestiary_safe_rlhf.options import SafeRLHFOptions
from bestiary_samplers.dynamic import all_equal

CASES = json.loads((Path(__file__).parents[1] / "cases" / "oracles.json").read_text())["cases"]
ORACLES = {case["name"]: case for case in CASES}
REGISTRY = load_plugins().registry


def case(name):
    return ORACLES[name]["inputs"], ORACLES[name]["expected"]


def row(values):
    return torch.tensor(values, dtype=torch.float64).reshape(1, -1)


@pytest.mark.parametrize("name", [n for n in ORACLES if n.startswith("safe_rlhf_actor_lambda")])
def test_the_lagrangian_and_the_clipped_loss(name):
    given, wanted = case(name)
    mask = row(given["mask"]).bool()
    x = Rows(
        {
            "reward": row([given["reward"]])[0],
            "cost": row([given["cost"]])[0],
            "values": row(given["reward_values"]),
            "cost_values": row(given["cost_values"]),
            "old_logprobs": row(given["old_logp"]),
            "ref_logprobs": row(given["ref_logp"]),
            "valid": torch.tensor([True]),
        },
        mask,
    )
    component = REGISTRY.get("advantage", "lagrangian")
    options = component.options_class()(
        gamma=given["gamma"], lam=given["gae_lambda"], score_clip=given["clip_range_score"]
    )
    beta = given["kl_coeff"] * (0.5 if given["kl_half"] else 1.0)
    made = component.build(options)(x, LocalReduce(), lam=given["lam"], kl_coef=beta, kl_kind="k1")
    assert made["advantages"][0].tolist() == pytest.approx(wanted["advantages"], abs=1e-12)
    cost = torch.tensor(wanted["cost_advantages"], dtype=torch.float64)
    assert torch.allclose(made["cost_returns"][0], cost + x["cost_values"][0])
    reward = torch.tensor(wanted["reward_advantages"], dtype=torch.float64)
    assert torch.allclose(made["returns"][0], reward + x["values"][0])
    loss = REGISTRY.get("loss", "clip")
    clip = loss.build(loss.options_class()(clip_low=given["clip"], clip_high=given["clip"]))
    x = x.with_columns(advantages=made["advantages"])
    per_token, _ = clip(ModelOutput(logprobs=row(given["new_logp"])), x)
    assert float(per_token.mean()) == pytest.approx(wanted["actor_loss"], abs=1e-12)


def test_safe_rlhf_cost_window():
    given, wanted = case("safe_rlhf_cost_window")
    multiplier = Multiplier(SafeRLHFOptions(window=given["window"]))
    found = multiplier.step(given["costs"], step=1)
    assert found["lagrange/cost"] == pytest.approx(wanted["J_C"], abs=1e-12)


@pytest.mark.parametrize("name", ["safe_rlhf_lambda_violated", "safe_rlhf_lambda_threshold"])
def test_the_multiplier(name):
    given, wanted = case(name)
    lam, cost = given["lam"], given.get("J_C", given.get("mean_cost"))
    options = SafeRLHFOptions(
        lambda_init=lam,
        lambda_lr=given["lr"],
        lambda_max=given["lam_max"],
        threshold=given.get("d", given.get("threshold")),
    )
    moved = Multiplier(options).step([cost], step=1)["lagrange/lambda"]
    value = next(v for k, v in wanted.items() if k.startswith("lam"))
    assert moved == pytest.approx(value, abs=1e-12)


def test_dapo_overlong_soft_penalty():
    given, wanted = case("dapo_overlong_soft_penalty")
    lost = overlong(np.array(given["lengths"]), given["L_max"], given["L_cache"])
    assert (-lost).tolist() == pytest.approx(wanted["penalty"], abs=1e-12)
    component = REGISTRY.get("reward", "overlong")
    scorer = component.build(
        component.options_class()(limit=given["L_max"], buffer=given["L_cache"])
    )
    from bestiary.protocols import Sample

    samples = [Sample("u", "", "", "", n, False) for n in given["lengths"]]
    assert scorer(samples) == pytest.approx(wanted["penalty"], abs=1e-12)


def test_dapo_dynamic_sampling():
    given, wanted = case("dapo_dynamic_sampling")
    kept = [not all_equal(np.array(group, dtype=float)) for group in given["correct"]]
    assert kept == wanted["keep"]
