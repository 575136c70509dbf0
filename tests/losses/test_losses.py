"""Losses against worked numbers, loops over single tokens, and laws of value and gradient."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bestiary.batch import Rows
from bestiary.plugins.manager import load_plugins
from bestiary.protocols import ModelOutput
from bestiary.roles.row_weights import row_weights

REGISTRY = load_plugins().registry
CASES = json.loads((Path(__file__).parents[1] / "cases" / "oracles.json").read_text())["cases"]
POLICY = (
    "clip", "clip_higher", "clip_constant", "gspo", "cispo", "sapo", "gmpo", "reinforce", "dro",
    "dppo", "decoupled",
)  # fmt: skip
TERMS = ("entropy", "kl", "nll", "value")
PAIRS = ("bradley_terry", "cost_preference", "dpo")
ALL = (*POLICY, *TERMS, *PAIRS)


def build(name, **options):
    component = REGISTRY.get("loss", name)
    return component.build(component.options_class()(**options))


def case(name):
    found = next(c for c in CASES if c["name"] == name)
    return found["inputs"], found["expected"]


def make(seed=0, n=8, width=6):
    """Rows in pairs with every column that a loss may read, and the model's outputs."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, width + 1, n)
    mask = torch.from_numpy(np.arange(width)[None] < lengths[:, None])

    def tokens(scale=1.0, shift=0.0):
        return torch.from_numpy(rng.normal(size=(n, width)) * scale + shift)

    now = -tokens().abs() - 0.01
    columns = {
        "advantages": tokens(),
        "old_logprobs": now + tokens(0.3),
        "rollout_logprobs": now + tokens(0.3),
        "ref_logprobs": now + tokens(0.3),
        "values": tokens(),
        "returns": tokens(),
        "group": torch.arange(n) // 2,
        "preferred": torch.tensor([1.0, 0.0] * (n // 2)).double(),
        "unsafe": torch.from_numpy(rng.choice([-1.0, 1.0], n)),
    }
    out = {"logprobs": now, "entropy": tokens().abs(), "values": tokens()}
    return Rows(columns, mask), out


def run(loss, x, out, mode=None):
    """(Σ w·ℓ, gradients of the outputs) with weights of the whole batch."""
    leaves = {name: out[name].clone().requires_grad_() for name in loss.options.outputs}
    per_token, stats = loss(ModelOutput(**leaves), x)
    assert per_token.shape == x.mask.shape
    mode = mode or getattr(loss.options, "weights", loss.options.default_weights)
    weights = weights_of(x, mode)
    total = torch.where(x.mask, per_token, 0.0) * weights[:, None]
    total = total.sum()
    grads = torch.autograd.grad(total, list(leaves.values()), allow_unused=True)
    return total, dict(zip(leaves, grads, strict=True)), stats


def weights_of(x, mode, whole=None):
    lengths = (x if whole is None else whole).mask.sum(-1).numpy()
    return torch.from_numpy(row_weights(lengths, mode, length_norm=5.0))


def take(x, out, index):
    rows = Rows({n: c[index] for n, c in x.items()}, x.mask[index])
    return rows, {n: c[index] for n, c in out.items()}


# --------------------------------------------------------------------------- laws


def test_no_loss_is_left_out():
    assert set(ALL) <= set(REGISTRY.names("loss"))


@pytest.mark.parametrize("name", ALL)
@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 500))
def test_any_split_adds_up_in_value_and_gradient(name, seed):
    x, out = make(seed)
    loss = build(name)
    mode = getattr(loss.options, "weights", loss.options.default_weights)
    whole, grads, _ = run(loss, x, out)
    weights = weights_of(x, mode)
    cut = np.random.default_rng(seed).integers(0, 3, x.size // 2).repeat(2)
    total, found = 0.0, {name: torch.zeros_like(g) for name, g in grads.items()}
    for part in range(3):
        index = torch.from_numpy(np.flatnonzero(cut == part))
        if not len(index):
            continue
        rows, some = take(x, out, index)
        leaves = {n: some[n].clone().requires_grad_() for n in loss.options.outputs}
        per_token, _ = loss(ModelOutput(**leaves), rows)
        value = (torch.where(rows.mask, per_token, 0.0) * weights[index][:, None]).sum()
        total += float(value.detach())
        for (n, _), g in zip(leaves.items(), torch.autograd.grad(value, list(leaves.values())),
                             strict=True):  # fmt: skip
            found[n][index] = g
    assert total == pytest.approx(float(whole.detach()), rel=1e-10, abs=1e-12)
    for n, g in grads.items():
        assert torch.allclose(found[n], g, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", ALL)
@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 500))
def test_padding_does_not_matter(name, seed):
    x, out = make(seed)
    loss = build(name)
    whole, grads, stats = run(loss, x, out)

    def wider(column, fill):
        if column.dim() == 1:
            return column
        padded = torch.nn.functional.pad(column.masked_fill(~x.mask, fill), (0, 2), value=fill)
        return padded

    mask = torch.nn.functional.pad(x.mask, (0, 2))
    more = Rows({n: wider(c, 7.0) for n, c in x.items()}, mask)
    some = {n: wider(c, -0.5) for n, c in out.items()}
    again, wide, others = run(loss, more, some)
    assert float(again.detach()) == pytest.approx(float(whole.detach()), rel=1e-10, abs=1e-12)
    for n, g in grads.items():
        assert torch.allclose(wide[n][:, : g.shape[1]], g, rtol=1e-10, atol=1e-12)
        assert not wide[n][~mask].any()
    for n, stat in stats.items():
        assert others[n].value == pytest.approx(stat.value, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("name", ALL)
def test_statistics_add_up_over_micro_batches(name):
    x, out = make(3)
    loss = build(name)
    _, _, whole = run(loss, x, out)
    parts = [run(loss, *take(x, out, torch.arange(a, a + 4)))[2] for a in (0, 4)]
    for n, stat in whole.items():
        assert (parts[0][n] + parts[1][n]).value == pytest.approx(stat.value, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("name", POLICY)
def test_on_policy_the_first_step_is_the_policy_gradient(name):
    x, out = make(1)
    x = x.with_columns(old_logprobs=out["logprobs"], rollout_logprobs=out["logprobs"])
    x = x.with_columns(advantages=x["advantages"][:, :1].expand(x.mask.shape))
    loss = build(name)
    _, grads, stats = run(loss, x, out)
    mode = loss.options.weights
    wanted = -x["advantages"] * weights_of(x, mode)[:, None] * x.mask
    assert torch.allclose(grads["logprobs"], wanted, rtol=1e-9, atol=1e-12)
    if "ratio/max" in stats:
        assert stats["ratio/max"].value == 1.0
        assert stats["kl/old"].value == 0.0
    for key in ("clip/fraction", "correction/capped"):
        assert stats.get(key) is None or stats[key].value == 0.0


@pytest.mark.parametrize("name", ALL)
def test_declared_columns_and_outputs_are_those_that_are_read(name):
    seen = set()

    class Watched(Rows):
        def __getitem__(self, key):
            seen.add(key)
            return super().__getitem__(key)

    x, out = make(2)
    loss = build(name)
    leaves = {n: out[n] for n in loss.options.outputs}
    loss(ModelOutput(**leaves), Watched(dict(x), x.mask))
    watched = {"rollout_logprobs", "old_logprobs"}  # sent where they are there
    assert seen <= loss.options.requires | loss.options.optional | watched
    with pytest.raises(ValueError, match="declare it in the loss's `outputs`"):
        loss(ModelOutput(), x)


# --------------------------------------------------------------------------- numbers


def f64(x):
    return torch.tensor(x, dtype=torch.float64)


def given_rows(given, advantages=None):
    mask = f64(given["mask"]).bool()
    columns = {"old_logprobs": f64(given["old_logp"])}
    columns["advantages"] = f64(given["advantages"] if advantages is None else advantages)
    if "ref_logp" in given:
        columns["ref_logprobs"] = f64(given["ref_logp"])
    return Rows(columns, mask), {"logprobs": f64(given["new_logp"])}


def test_dr_grpo():
    given, wanted = case("dr_grpo_loss_const_norm")
    x, out = given_rows(given)
    loss = build("clip_constant", clip_low=given["eps"], clip_high=given["eps"])
    per_token, _ = loss(ModelOutput(**out), x)
    weights = row_weights(
        x.mask.sum(-1).numpy(), "seq-mean-token-sum-norm", length_norm=given["L_max"]
    )
    total = (per_token * torch.from_numpy(weights)[:, None]).sum()
    assert float(total) == pytest.approx(wanted["loss"], rel=1e-12)


def test_cispo():
    given, wanted = case("cispo_loss")
    x, out = given_rows(given)
    now = out["logprobs"].requires_grad_()
    loss = build("cispo", clip_low=given["eps_low"], clip_high=given["eps_high"])
    per_token, _ = loss(ModelOutput(logprobs=now), x)
    total = per_token.sum() / x.mask.sum()
    assert float(total.detach()) == pytest.approx(wanted["loss"], rel=1e-12)
    (grad,) = torch.autograd.grad(total, now)
    assert torch.allclose(grad, f64(wanted["grad"]), rtol=1e-12, atol=1e-15)


def test_gspo():
    given, wanted = case("gspo_loss_unclipped")
    x, out = given_rows(given)
    loss = build("gspo", clip_low=given["eps_low"], clip_high=given["eps_high"])
    per_token, _ = loss(ModelOutput(**out), x)
    weights = torch.from_numpy(row_weights(x.mask.sum(-1).numpy(), "seq-mean-token-mean"))
    total = float((per_token * weights[:, None]).sum())
    assert total == pytest.approx(wanted["loss"], rel=1e-9)


@pytest.mark.parametrize("name", ["decoupled_ppo_uncapped", "decoupled_ppo_cap_mask"])
def test_decoupled(name):
    given, wanted = case(name)
    row = {key: f64(x)[None] for key, x in given.items() if isinstance(x, list)}
    columns = {
        "old_logprobs": row["prox_logp"],
        "rollout_logprobs": row["behave_logp"],
        "advantages": row["advantages"],
    }
    x, eps = Rows(columns, row["mask"].bool()), given["eps"]
    loss = build("decoupled", clip_low=eps, clip_high=eps, cap=given.get("cap"), cap_mode="mask")
    per_token, _ = loss(ModelOutput(logprobs=row["logp"]), x)
    total = float(per_token.sum() / x.mask.sum())
    assert total == pytest.approx(wanted["loss"], rel=1e-12)


def test_cost_model():
    given, wanted = case("safe_rlhf_cost_model_loss")
    unsafer, safer = given["unsafer_cost"], given["safer_cost"]
    cost = [c for pair in zip(safer, unsafer, strict=True) for c in pair]
    signs = [
        s for pair in zip(given["safer_sign"], given["unsafer_sign"], strict=True) for s in pair
    ]
    mask = torch.tensor([[True, True]] * 4)
    x = Rows(
        {
            "group": torch.tensor([0, 0, 1, 1]),
            "preferred": f64([1, 0, 1, 0]),
            "unsafe": f64(signs),
        },
        mask,
    )
    values = torch.stack([torch.full((4,), 9.0).double(), f64(cost)], -1)
    loss = build("cost_preference")
    per_token, stats = loss(ModelOutput(values=values), x)
    weights = torch.from_numpy(row_weights(mask.sum(-1).numpy(), "seq-mean-token-sum"))
    total = (per_token * weights[:, None]).sum()
    assert float(total) == pytest.approx(wanted["loss"], rel=1e-12)
    assert stats["preference/accuracy"].value == 1.0


def test_bradley_terry_by_hand():
    mask = torch.tensor([[True, True], [True, False], [True, True], [True, False]])
    x = Rows({"group": torch.tensor([4, 4, 7, 7]), "preferred": f64([0, 1, 1, 0])}, mask)
    values = f64([[9.0, 1.0], [3.0, 9.0], [9.0, 0.5], [0.5, 9.0]])
    per_token, stats = build("bradley_terry")(ModelOutput(values=values), x)
    first, second = math.log1p(math.exp(-2.0)), math.log(2.0)
    wanted = [[0, first], [first, 0], [0, second], [second, 0]]
    assert torch.allclose(per_token, f64(wanted))
    assert stats["preference/accuracy"].value == 0.75
    assert stats["preference/margin"].value == 1.0
    centred, _ = build("bradley_terry", center=0.1)(ModelOutput(values=values), x)
    assert float(centred[0, 1]) == pytest.approx(first + 0.1 * 16.0)


def test_dpo_by_hand():
    mask = torch.tensor([[True, True], [True, False]])
    x = Rows(
        {
            "group": torch.tensor([0, 0]),
            "preferred": f64([1, 0]),
            "ref_logprobs": f64([[-1.0, -1.0], [-2.0, 5.0]]),
        },
        mask,
    )
    now = f64([[-0.5, -1.0], [-2.5, 5.0]])
    per_token, _ = build("dpo", beta=0.2)(ModelOutput(logprobs=now), x)
    margin = 0.2 * (0.5 - (-0.5))
    wanted = math.log1p(math.exp(-margin))
    assert torch.allclose(per_token, f64([[0, wanted], [wanted, 0]]))
    smooth, _ = build("dpo", beta=0.2, label_smoothing=0.1)(ModelOutput(logprobs=now), x)
    wanted = 0.9 * wanted + 0.1 * math.log1p(math.exp(margin))
    assert float(smooth[0, 1]) == pytest.approx(wanted)
    ipo, _ = build("dpo", beta=0.2, variant="ipo")(ModelOutput(logprobs=now), x)
    assert float(ipo[0, 1]) == pytest.approx((0.25 + 0.5 - 1 / 0.4) ** 2)


@pytest.mark.parametrize("name", PAIRS)
def test_a_row_without_a_partner_has_no_loss(name):
    x, out = make(1)
    rows, some = take(x, out, torch.arange(7))  # the last row is alone
    loss = build(name)
    _, grads, _ = run(loss, rows, some)
    (grad,) = grads.values()
    assert not grad[6].any()
    assert grad[:6].any()


def test_dro_by_a_loop():
    x, out = make(4)
    per_token, _ = build("dro", beta=0.3)(ModelOutput(logprobs=out["logprobs"]), x)
    for i, t in torch.nonzero(x.mask).tolist():
        now, old = out["logprobs"][i, t].item(), x["old_logprobs"][i, t].item()
        wanted = -(x["advantages"][i, t].item() * now - 0.15 * (now - old) ** 2)
        assert per_token[i, t].item() == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("divergence", ["tv", "kl"])
def test_dppo_by_a_loop(divergence):
    x, out = make(4)
    loss = build("dppo", divergence=divergence, threshold=0.05, cap=1.1)
    now = out["logprobs"].clone().requires_grad_()
    per_token, stats = loss(ModelOutput(logprobs=now), x)
    (grad,) = torch.autograd.grad(per_token.sum(), now)
    dropped = 0
    for i, t in torch.nonzero(x.mask).tolist():
        p, q = math.exp(now[i, t].item()), math.exp(x["old_logprobs"][i, t].item())
        q = min(q, 1.0)
        a = x["advantages"][i, t].item()
        old = math.exp(x["old_logprobs"][i, t].item())
        if divergence == "tv":
            far = abs(p - old) > 0.05
        else:
            rest = 0.0 if old >= 1.0 else (1 - old) * math.log((1 - old) / (1 - p))
            far = old * math.log(old / p) + rest > 0.05
        lost = far and (p - old) * a > 0
        dropped += lost
        wanted = 0.0 if lost else -a * min(p / old, 1.1)
        assert grad[i, t].item() == pytest.approx(wanted, rel=1e-9, abs=1e-12)
    assert stats["clip/fraction"].total == dropped > 0


def test_dual_clip_is_counted():
    x, out = make(4)
    x = x.with_columns(old_logprobs=out["logprobs"] - 2.0)
    _, stats = build("clip", dual_clip=3.0)(ModelOutput(logprobs=out["logprobs"]), x)
    bad = (x["advantages"] < 0) & x.mask
    assert stats["clip/dual_fraction"].value == pytest.approx(float(bad.sum() / x.mask.sum()))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("clip", {"clip_low": 1.5}),
        ("clip", {"dual_clip": 1.0}),
        ("gspo", {"clip_high": -1.0}),
        ("sapo", {"tau_neg": 0.0}),
        ("gmpo", {"clip_low": -0.1}),
        ("dro", {"beta": 0.0}),
        ("dppo", {"threshold": 0.0}),
        ("decoupled", {"cap": 0.0}),
        ("kl", {"kind": "k1"}),
        ("kl", {"clamp": 0.0}),
        ("value", {"clip": 0.0}),
        ("bradley_terry", {"center": -1.0}),
        ("dpo", {"beta": 0.0}),
        ("dpo", {"label_smoothing": 0.5}),
    ],
)
def test_options_without_meaning_are_refused(name, options):
    with pytest.raises(ValueError, match=r"must|gradient"):
        build(name, **options)
