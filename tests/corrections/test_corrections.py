"""Corrections against worked numbers, loops, and laws."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bestiary.batch import Rows
from bestiary.distributed.collectives import LocalReduce
from bestiary.plugins.manager import load_plugins

REGISTRY = load_plugins().registry
CASES = json.loads((Path(__file__).parents[1] / "cases" / "oracles.json").read_text())["cases"]
CHOICES = [
    ("tis", {}),
    ("tis", {"level": "sequence", "cap": 3.0}),
    ("tis", {"level": "geometric"}),
    ("tis", {"normalise": "mean"}),
    ("icepop", {}),
    ("geometric_mask", {}),
    ("reject", {"criteria": (("token", 0.5, 2.0), ("geometric", 0.9, 1.1)), "weighted": True}),
    ("reject", {"criteria": (("veto", 0.2, None),)}),
]


def build(name, **options):
    component = REGISTRY.get("correction", name)
    return component.build(component.options_class()(**options))


def make(seed=0, n=9, width=6):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, width + 1, n)
    mask = torch.from_numpy(np.arange(width)[None] < lengths[:, None])
    old = torch.from_numpy(-np.abs(rng.normal(size=(n, width))))
    gap = torch.from_numpy(rng.normal(size=(n, width)) * 0.6)
    valid = torch.ones(n, dtype=torch.bool)
    valid[2] = False
    return Rows({"old_logprobs": old, "rollout_logprobs": old + gap, "valid": valid}, mask)


def test_MATH_tis_and_mis_weights():
    case = next(c for c in CASES if c["name"] == "tis_mis_weights")
    given, wanted = case["inputs"], case["expected"]
    train, engine, mask = (
        torch.tensor(given[k], dtype=torch.float64) for k in ("train_logp", "infer_logp", "mask")
    )
    x = Rows(
        {"old_logprobs": train, "rollout_logprobs": engine, "valid": torch.tensor([True, True])},
        mask.bool(),
    )

    def weights(name, **options):
        return build(name, **options)(x, LocalReduce())["token_weight"]

    def f64(name):
        return torch.tensor(wanted[name], dtype=torch.float64)

    assert torch.allclose(weights("tis", cap=given["C_token"]), f64("tis_token"))
    sequence = weights("tis", level="sequence", cap=given["C_seq"])
    assert torch.allclose(sequence, f64("tis_seq")[:, None].expand(2, 4))
    lo, hi = given["lo"], given["hi"]
    mis = weights("icepop", criteria=(("token", lo, hi),))
    assert torch.allclose(mis, f64("mis_token"))
    mis = weights("icepop", criteria=(("sequence", lo, hi),))
    assert mis.sum(-1).tolist() == wanted["mis_seq"]
    kept = weights("geometric_mask", criteria=(("geometric", given["geo_lo"], given["geo_hi"]),))
    assert kept.bool().all(-1).tolist() == wanted["geo_keep"]


def test_tis_by_a_loop():
    x = make(1)
    for level in ("token", "sequence", "geometric"):
        made = build("tis", level=level, cap=1.5)(x, LocalReduce())["token_weight"]
        for i in range(x.size):
            length = int(x.mask[i].sum())
            gaps = (x["old_logprobs"] - x["rollout_logprobs"])[i, :length]
            for t in range(length):
                log = {"token": gaps[t], "sequence": gaps.sum(), "geometric": gaps.mean()}[level]
                wanted = min(float(log.exp()), 1.5) if x["valid"][i] else 0.0
                assert made[i, t].item() == pytest.approx(wanted, rel=1e-12)


def test_criteria_hold_together_by_a_loop():
    x = make(2)
    made = build(
        "reject", criteria=(("token", 0.5, 2.0), ("geometric", 0.8, 1.25), ("veto", 0.2, None))
    )(x, LocalReduce())
    kept = 0
    for i in range(x.size):
        length = int(x.mask[i].sum())
        ratios = (x["old_logprobs"] - x["rollout_logprobs"])[i, :length].exp()
        whole = 0.8 <= float(ratios.log().mean().exp()) <= 1.25 and bool((ratios >= 0.2).all())
        for t in range(length):
            keep = whole and 0.5 <= float(ratios[t]) <= 2.0 and bool(x["valid"][i])
            kept += keep
            assert made["token_weight"][i, t].item() == float(keep)
    live = int((x.mask & x["valid"][:, None]).sum())
    assert made["correction/dropped"].value == pytest.approx(1 - kept / live)


@pytest.mark.parametrize(("name", "options"), CHOICES)
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 500))
def test_order_padding_and_masked_values_do_not_matter(name, options, seed):
    x = make(seed)
    correction = build(name, **options)
    plain = correction(x, LocalReduce())["token_weight"]
    order = torch.randperm(x.size, generator=torch.Generator().manual_seed(seed))
    moved = Rows({n: c[order] for n, c in x.items()}, x.mask[order])
    assert torch.allclose(correction(moved, LocalReduce())["token_weight"], plain[order])

    def wider(column):
        if column.dim() == 1:
            return column
        column = column.masked_fill(~x.mask, float("nan"))
        return torch.nn.functional.pad(column, (0, 2), value=float("nan"))

    more = Rows({n: wider(c) for n, c in x.items()}, torch.nn.functional.pad(x.mask, (0, 2)))
    wide = correction(more, LocalReduce())["token_weight"]
    assert torch.allclose(wide[:, : plain.shape[1]], plain)
    assert not wide[~more.mask].any()
    assert not wide[2].any()


@pytest.mark.parametrize(("name", "options"), CHOICES)
def test_equal_policies_need_no_correction(name, options):
    x = make(3)
    x = x.with_columns(rollout_logprobs=x["old_logprobs"])
    made = build(name, **options)(x, LocalReduce())
    live = x.mask & x["valid"][:, None]
    assert torch.allclose(made["token_weight"], live.double())


def test_normalised_weights_have_mean_one_over_all_ranks():
    x = make(4)

    class Twice(LocalReduce):
        def sum(self, t):
            return t * 2  # an equal shard on another rank

    made = build("tis", normalise="mean")(x, Twice())["token_weight"]
    live = x.mask & x["valid"][:, None]
    assert made[live].mean().item() == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("tis", {"cap": 0.0}),
        ("reject", {"criteria": (("tokens", 0.5, 2.0),)}),
        ("reject", {"criteria": (("token", 2.0, 0.5),)}),
    ],
)
def test_options_without_meaning_are_refused(name, options):
    with pytest.raises(ValueError, match=r"cap|criteria"):
        build(name, **options)
