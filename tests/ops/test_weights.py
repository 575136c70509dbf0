import itertools
import json
from pathlib import Path

import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from bestiary.ops.kl import kl_loss
from bestiary.ops.policy import cispo, clipped_surrogate, gmpo, reinforce, sapo, sequence_surrogate
from bestiary.ops.value import clipped_value_loss
from bestiary.ops.weights import loss_totals, loss_weights, weighted_sum

CASES = Path(__file__).parents[1] / "cases"
FAULTS = {fault["id"]: fault for fault in yaml.safe_load((CASES / "faults.yaml").read_text())}
ORACLES = {c["name"]: c for c in json.loads((CASES / "oracles.json").read_text())["cases"]}
NAN = float("nan")
MODES = {
    "token-mean": {},
    "token-sum": {},
    "seq-mean-token-sum": {},
    "seq-mean-token-mean": {},
    "seq-mean-token-sum-norm": {"length_norm": 7},
}
close = torch.testing.assert_close
laws = settings(max_examples=40, deadline=None)  # shared machines stall now and then


def f64(values):
    return torch.tensor(values, dtype=torch.float64)


def add(*parts):
    return {key: sum(part[key] for part in parts) for key in parts[0]}


def test_loss_aggregation_modes_oracle():
    case = ORACLES["loss_aggregation_modes"]
    losses, mask = f64(case["inputs"]["loss_mat"]), f64(case["inputs"]["mask"]).bool()
    for key, wanted in case["expected"].items():
        mode = key.replace("_", "-")
        norm = {"length_norm": case["inputs"]["L"]} if mode.endswith("norm") else {}
        got = weighted_sum(losses, loss_weights(mask, mode=mode, **norm))
        close(got.item(), wanted, rtol=1e-12, atol=1e-12)


MASK = torch.tensor([[True, True, True], [True, False, False], [False, False, False]])


@pytest.mark.parametrize(
    ("mode", "options", "first", "second"),
    [
        ("token-mean", {}, 1 / 4, 1 / 4),
        ("token-sum", {}, 1.0, 1.0),
        ("seq-mean-token-sum", {}, 1 / 2, 1 / 2),  # the third row is invalid and leaves N
        ("seq-mean-token-mean", {}, 1 / 6, 1 / 2),
        ("seq-mean-token-sum-norm", {"length_norm": 10}, 1 / 20, 1 / 20),
    ],
)
def test_weights_by_hand(mode, options, first, second):
    got = loss_weights(MASK, mode=mode, **options)
    close(got, f64([[first] * 3, [second, 0.0, 0.0], [0.0] * 3]))


REJECT = torch.tensor([[True, False, False], [False, True, True], [True, True, True]])


@pytest.mark.parametrize(
    ("mode", "original", "kept"),
    [
        ("token-mean", [0, 2 / 4, 2 / 4, 1 / 4], [0, 2 / 5, 2 / 5, 1 / 5]),
        ("token-sum", [0, 2, 2, 1], [0, 2, 2, 1]),
        ("seq-mean-token-sum", [0, 2 / 2, 2 / 2, 1 / 2], [0, 2 / 3, 2 / 3, 1 / 3]),
        ("seq-mean-token-mean", [0, 2 / 6, 2 / 6, 1 / 2], [0, 2 / 6, 2 / 6, 1 / 3]),
    ],
)
def test_sample_weight_and_reject_change_the_numerator_only_unless_kept(mode, original, kept):
    for denominator, (a, b, c, d) in (("original", original), ("kept", kept)):
        got = loss_weights(
            MASK,
            mode=mode,
            sample_weight=f64([2.0, 1.0, NAN]),
            reject=REJECT,
            denominator=denominator,
        )
        close(got, f64([[a, b, c], [d, 0, 0], [0, 0, 0]]))


def test_kept_weights_of_equal_losses_give_that_loss():
    losses = torch.full((3, 3), 1.5, dtype=torch.float64)
    options = {"sample_weight": f64([2.0, 0.5, 1.0]), "reject": REJECT, "denominator": "kept"}
    for mode in ("token-mean", "seq-mean-token-mean"):
        close(weighted_sum(losses, loss_weights(MASK, mode=mode, **options)).item(), 1.5)


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean"])
def test_kept_weights_of_weightless_samples_are_zero(mode):
    got = loss_weights(MASK, mode=mode, sample_weight=torch.zeros(3), denominator="kept")
    assert torch.equal(got, torch.zeros(3, 3, dtype=torch.float64))


def test_a_whole_row_can_be_rejected():
    reject = torch.tensor([True, False, False])
    close(loss_weights(MASK, reject=reject)[:2, 0], f64([0.0, 1 / 4]))
    close(loss_weights(MASK, reject=reject, denominator="kept")[:2, 0], f64([0.0, 1.0]))


@pytest.mark.parametrize("mode", MODES)
def test_DATA_06_nothing_live_is_zero_with_finite_gradient(mode):
    mask = torch.tensor(FAULTS["DATA-06"]["input"]["all_masked"]["mask"]).bool()
    now = torch.full(mask.shape, NAN, requires_grad=True)
    losses = reinforce(now, torch.ones(2), mask)
    loss = weighted_sum(losses, loss_weights(mask, mode=mode, **MODES[mode]))
    loss.backward()
    assert loss.item() == FAULTS["DATA-06"]["expected"]["loss_all_masked"]
    assert now.grad.tolist() == [[0.0, 0.0], [0.0, 0.0]]


@pytest.mark.parametrize("size", FAULTS["MATH-04"]["input"]["micro_batch_sizes"])
def test_MATH_04_micro_batch_size_changes_nothing(size):
    case = FAULTS["MATH-04"]
    rows = case["input"]["per_token_loss"]
    losses = f64([row + [0.0] * (5 - len(row)) for row in rows])
    mask = torch.tensor([[t < len(row) for t in range(5)] for row in rows])
    totals = add(*(loss_totals(mask[i : i + size]) for i in range(0, 2, size)))
    for mode, wanted in (("token-mean", case["expected"]["loss"]), ("seq-mean-token-mean", 1.25)):
        scale = f64(1.0).requires_grad_()
        total = 0.0
        for i in range(0, 2, size):
            weights = loss_weights(mask[i : i + size], mode=mode, totals=totals)
            part = weighted_sum(scale * losses[i : i + size], weights)
            part.backward()
            total += part.item()
        close(total, wanted, rtol=0, atol=1e-12)
        close(scale.grad.item(), wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("assignment", [[[0, 1]], [[0], [1]], [[1], [0]], [[0], [1], [], []]])
def test_DIST_01_gradient_does_not_depend_on_ranks(assignment):
    case = FAULTS["DIST-01"]
    x = f64([case["input"]["rank0"], case["input"]["rank1"] + [0.0, 0.0]])
    mask = torch.tensor([[True, True, True], [True, False, False]])
    totals = add(*(loss_totals(mask[rows]) for rows in assignment))
    w = f64(case["input"]["w"]).requires_grad_()
    for rows in assignment:  # one backward a rank; the gradients are summed
        weighted_sum(w * x[rows], loss_weights(mask[rows], totals=totals)).backward()
    close(w.grad.item(), case["expected"]["gradient"], rtol=0, atol=1e-12)


LOSSES = {
    "clipped": clipped_surrogate,
    "gspo": lambda *a: sequence_surrogate(*a, clip_low=0.2, clip_high=0.2),
    "cispo": cispo,
    "sapo": sapo,
    "gmpo": gmpo,
    "reinforce": lambda now, old, adv, mask: reinforce(now, adv, mask),
    "kl": lambda now, old, adv, mask: kl_loss(now, old, mask),
    "value": lambda now, old, adv, mask: clipped_value_loss(now, old, adv, mask),
}


@pytest.mark.parametrize("name", LOSSES)
@laws
@given(
    seed=st.integers(0, 10_000),
    mode=st.sampled_from(list(MODES)),
    denominator=st.sampled_from(["original", "kept"]),
    cuts=st.sets(st.integers(1, 5), max_size=4),
)
def test_any_split_adds_up_in_value_and_gradient(name, seed, mode, denominator, cuts):
    g = torch.Generator().manual_seed(seed)
    now, old, advantages = torch.randn(3, 6, 4, generator=g, dtype=torch.float64) * 0.3
    mask = torch.arange(4) < torch.randint(0, 5, (6, 1), generator=g)
    options = {
        "sample_weight": torch.rand(6, generator=g, dtype=torch.float64),
        "reject": torch.rand(6, 4, generator=g) < 0.2,
    }

    def run(parts):
        x = now.clone().requires_grad_()
        picks = [{key: value[p] for key, value in options.items()} for p in parts]
        totals = add(
            *(
                loss_totals(mask[p], denominator=denominator, **pick)
                for p, pick in zip(parts, picks, strict=True)
            )
        )
        value = 0.0
        for p, pick in zip(parts, picks, strict=True):
            losses = LOSSES[name](x[p], old[p], advantages[p], mask[p])
            weights = loss_weights(
                mask[p], mode=mode, denominator=denominator, totals=totals, **pick, **MODES[mode]
            )
            part = weighted_sum(losses, weights)
            part.backward()
            value += part.item()
        return value, x.grad

    edges = [0, *sorted(cuts), 6]
    parts = [slice(a, b) for a, b in itertools.pairwise(edges)]
    value, gradient = run(parts)
    whole_value, whole_gradient = run([slice(0, 6)])
    close(value, whole_value, rtol=1e-11, atol=1e-12)
    close(gradient, whole_gradient, rtol=1e-11, atol=1e-12)


def test_totals_may_be_plain_numbers():
    got = loss_weights(MASK, totals={"tokens": 8, "sequences": 3})
    assert got[0, 0].item() == 1 / 8
    got = loss_weights(MASK, mode="seq-mean-token-sum", totals={"sequences": 4})
    assert got[0, 0].item() == 1 / 4


def test_missing_total_is_named():
    with pytest.raises(ValueError, match="'tokens'"):
        loss_weights(MASK, totals={"sequences": 3})


@pytest.mark.parametrize("length_norm", [None, 0, -1.0])
def test_constant_length_is_required(length_norm):
    with pytest.raises(ValueError, match="length_norm"):
        loss_weights(MASK, mode="seq-mean-token-sum-norm", length_norm=length_norm)


@pytest.mark.parametrize("options", [{"mode": "mean"}, {"denominator": "valid"}])
def test_unknown_options_are_refused(options):
    # TypeError is the run-time type checker's, where that is switched on.
    with pytest.raises((ValueError, TypeError)):
        loss_weights(MASK, **options)


def test_weighted_sum_skips_losses_without_weight_and_shows_the_others():
    losses = torch.tensor([[NAN, 2.0]], requires_grad=True)
    loss = weighted_sum(losses, f64([[0.0, 0.5]]))
    loss.backward()
    assert loss.item() == 1.0
    assert losses.grad.tolist() == [[0.0, 0.5]]
    assert weighted_sum(losses, f64([[0.5, 0.5]])).isnan()
