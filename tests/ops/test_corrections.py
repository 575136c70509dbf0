import json
import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bestiary.ops.corrections import decoupled_surrogate, importance_weights, rejection_mask
from bestiary.ops.policy import clipped_surrogate
from bestiary.ops.weights import loss_weights, weighted_sum

CASES = json.loads((Path(__file__).parents[1] / "cases/oracles.json").read_text())["cases"]
ORACLES = {case["name"]: case for case in CASES}
NAN = float("nan")
close = torch.testing.assert_close
laws = settings(max_examples=40, deadline=None)  # shared machines stall now and then


def f64(values):
    return torch.tensor(values, dtype=torch.float64)


def oracle_inputs(name):
    given_ = ORACLES[name]["inputs"]
    return (
        f64(given_["train_logp"]),
        f64(given_["infer_logp"]),
        f64(given_["mask"]).bool(),
    ), given_


def random_case(seed, rows=4, width=5):
    g = torch.Generator().manual_seed(seed)
    train, behaviour = torch.randn(2, rows, width, generator=g, dtype=torch.float64)
    return train, behaviour, torch.rand(rows, width, generator=g) < 0.7


@pytest.mark.parametrize("name", ["tis_mis_weights", "tis_mis_weights_sequence"])
def test_importance_weights_oracle(name):
    inputs, given_ = oracle_inputs(name)
    wanted = ORACLES[name]["expected"]
    if "rho" in wanted:
        close(importance_weights(*inputs), f64(wanted["rho"]), rtol=1e-12, atol=1e-12)
        tis = importance_weights(*inputs, cap=given_["C_token"])
        close(tis, f64(wanted["tis_token"]), rtol=1e-12, atol=1e-12)
        uncapped = importance_weights(*inputs, level="sequence")
        close(uncapped[:, 0], f64(wanted["seq_rho"]), rtol=1e-12, atol=1e-12)
        geometric = importance_weights(*inputs, level="geometric")
        close(geometric[:, 0], f64(wanted["geo_mean"]), rtol=1e-12, atol=1e-12)
    sequence = importance_weights(*inputs, level="sequence", cap=given_["C_seq"])
    close(sequence, f64(wanted["tis_seq"])[:, None].expand(2, 4), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["tis_mis_weights", "tis_mis_weights_sequence"])
def test_rejection_mask_oracle(name):
    inputs, given_ = oracle_inputs(name)
    wanted = ORACLES[name]["expected"]
    bounds = (given_["lo"], given_["hi"])
    geometric = ("geometric", given_["geo_lo"], given_["geo_hi"])
    keep = rejection_mask(*inputs, criteria=[geometric])
    assert keep.all(-1).tolist() == keep.any(-1).tolist() == wanted["geo_keep"]
    keep = rejection_mask(*inputs, criteria=[("sequence", *bounds)])
    masked = importance_weights(*inputs, level="sequence") * keep
    close(masked[:, 0], f64(wanted["mis_seq"]), rtol=1e-12, atol=1e-12)
    if "mis_token" in wanted:
        keep = rejection_mask(*inputs, criteria=[("token", *bounds)])
        masked = importance_weights(*inputs) * keep
        close(masked, f64(wanted["mis_token"]), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bounds_are_inclusive(dtype):
    behaviour = torch.zeros(1, 3, dtype=dtype)
    train = torch.tensor([[0.5, 1.0, 2.0]], dtype=dtype).log()
    mask = torch.ones(1, 3, dtype=torch.bool)
    assert rejection_mask(train, behaviour, mask, criteria=[("token", 0.5, 2.0)]).all()
    assert rejection_mask(train, behaviour, mask, criteria=[("sequence", 1, 1)]).all()


def test_veto_drops_the_row_of_one_bad_token_and_no_other():
    train = f64([[0.0, -20.0], [0.0, -20.0]])
    mask = torch.tensor([[True, True], [True, False]])
    keep = rejection_mask(train, torch.zeros_like(train), mask, criteria=[("veto", 1e-4, None)])
    assert keep.tolist() == [[False, False], [True, False]]
    keep = rejection_mask(train - 1, torch.zeros_like(train), mask, criteria=[("veto", 0.1, 0.9)])
    assert keep.tolist() == [[False, False], [True, False]]  # padding has no ratio, not ratio 1


def test_all_criteria_must_hold_and_none_keeps_everything():
    train, behaviour, mask = f64([[0.5, -0.5, 0.0]]), f64([[0.0] * 3]), torch.ones(1, 3).bool()
    assert torch.equal(rejection_mask(train, behaviour, mask, criteria=[]), mask)
    criteria = [("token", 0.7, None), ("token", None, 1.2)]
    keep = rejection_mask(train, behaviour, mask, criteria=criteria)
    assert keep.tolist() == [[False, False, True]]


def test_missing_behaviour_logprob_is_not_kept():
    train, behaviour = f64([[0.0, 0.0]]), f64([[NAN, 0.0]])
    keep = rejection_mask(
        train, behaviour, torch.ones(1, 2).bool(), criteria=[("token", None, None)]
    )
    assert keep.tolist() == [[False, True]]


@pytest.mark.parametrize(("level", "units"), [("token", [2.0, 4.0, 0.5]), ("sequence", [8.0, 0.5])])
def test_normalised_weights_have_mean_one_over_their_unit(level, units):
    train = f64([[2.0, 4.0], [0.5, NAN]]).log()
    mask = torch.tensor([[True, True], [True, False]])
    behaviour = torch.zeros(2, 2, dtype=torch.float64)
    got = importance_weights(train, behaviour, mask, level=level, normalise="mean")
    mean = sum(units) / len(units)
    row0 = [2.0 / mean, 4.0 / mean] if level == "token" else [8.0 / mean] * 2
    close(got, f64([row0, [0.5 / mean, 0.0]]))


def test_normalisation_over_shards_uses_the_global_mean():
    train, behaviour, mask = random_case(2)
    whole = importance_weights(train, behaviour, mask, cap=2.0, normalise="mean")
    sums = []

    class Reduce:
        def sum(self, partial):
            sums.append(partial)
            return torch.stack(sums).sum(0)

    reduce = Reduce()
    for half in (slice(2, 4), slice(0, 2)):  # the second call sees the sums of both
        top = importance_weights(
            *(train[half], behaviour[half], mask[half]), cap=2.0, normalise="mean", reduce=reduce
        )
    close(top, whole[:2], rtol=1e-13, atol=1e-13)


def test_normalising_nothing_is_zero():
    x = torch.zeros(1, 2)
    assert importance_weights(x, x, x.bool(), normalise="mean").tolist() == [[0.0, 0.0]]


@laws
@given(seed=st.integers(0, 10_000), level=st.sampled_from(["token", "sequence", "geometric"]))
def test_masked_values_never_leak_and_weights_are_constants(seed, level):
    train, behaviour, mask = random_case(seed)
    clean = importance_weights(train, behaviour, mask, level=level, cap=3.0)
    dirty = importance_weights(
        torch.where(mask, train, NAN).requires_grad_(),
        torch.where(mask, behaviour, -torch.inf),
        mask,
        level=level,
        cap=3.0,
    )
    assert torch.equal(clean, dirty)
    assert not dirty.requires_grad
    assert torch.equal(clean[~mask], torch.zeros_like(clean[~mask]))


def test_long_unlikely_sequences_do_not_overflow():
    gap = torch.full((1, 1000), 5.0)
    mask = torch.ones(1, 1000, dtype=torch.bool)
    up = importance_weights(gap, torch.zeros_like(gap), mask, level="sequence")
    assert up.isfinite().all()
    down = importance_weights(-gap, torch.zeros_like(gap), mask, level="sequence")
    assert down.isfinite().all()
    keep = rejection_mask(gap, torch.zeros_like(gap), mask, criteria=[("sequence", 0.1, 10.0)])
    assert not keep.any()


def decoupled_inputs(name):
    given_ = ORACLES[name]["inputs"]
    keys = ("logp", "prox_logp", "behave_logp", "advantages")
    return [f64([given_[key]]) for key in keys], given_


def mean_loss(losses):
    return weighted_sum(losses, loss_weights(torch.ones_like(losses, dtype=torch.bool))).item()


@pytest.mark.parametrize(
    "name", ["decoupled_ppo_uncapped", "decoupled_ppo_cap_mask", "decoupled_ppo_reduces_to_ppo"]
)
def test_decoupled_surrogate_oracle(name):
    inputs, given_ = decoupled_inputs(name)
    losses = decoupled_surrogate(
        *inputs, clip=given_["eps"], cap=given_.get("cap"), cap_mode=given_.get("mode")
    )
    wanted = ORACLES[name]["expected"]
    close(mean_loss(losses), wanted["loss"], rtol=1e-12, atol=1e-12)
    if "keep" in wanted:
        assert (losses != 0).double().tolist() == [wanted["keep"]]


def test_decoupled_surrogate_without_lag_is_ppo():
    inputs, _ = decoupled_inputs("decoupled_ppo_reduces_to_ppo")
    now, proximal, _, advantages = inputs
    close(decoupled_surrogate(*inputs), clipped_surrogate(now, proximal, advantages))


def test_cap_truncates_by_default_and_none_leaves_the_weight():
    inputs = [f64([[0.0]]), f64([[0.0]]), f64([[-math.log(4.0)]]), f64([1.0])]
    close(decoupled_surrogate(*inputs).item(), -4.0)
    close(decoupled_surrogate(*inputs, cap=3).item(), -3.0)
    close(decoupled_surrogate(*inputs, cap=3, cap_mode=None).item(), -4.0)
    assert decoupled_surrogate(*inputs, cap=3, cap_mode="mask").item() == 0.0


def test_decoupled_clip_may_be_asymmetric():
    inputs = [f64([[1.0]]), f64([[0.0]]), f64([[0.0]]), f64([1.0])]
    close(decoupled_surrogate(*inputs, clip=(0.2, 0.28)).item(), -1.28)


@pytest.mark.parametrize("cap_mode", ["truncate", "mask", None])
@laws
@given(seed=st.integers(0, 10_000))
def test_decoupled_surrogate_masks(cap_mode, seed):
    now, proximal, mask = random_case(seed)
    behaviour, advantages, _ = random_case(seed + 1)
    now = torch.where(mask, now, NAN).requires_grad_()
    losses = decoupled_surrogate(
        *(now, proximal, torch.where(mask, behaviour, NAN), advantages, mask),
        cap=2.0,
        cap_mode=cap_mode,
    )
    losses.sum().backward()
    assert losses.isfinite().all()
    assert torch.equal(losses[~mask], torch.zeros_like(losses[~mask]))
    assert torch.equal(now.grad[~mask], torch.zeros_like(losses[~mask]))


@pytest.mark.parametrize(
    "options", [{"level": "batch"}, {"cap": 0.0}, {"cap": NAN}, {"normalise": "sum"}]
)
def test_wrong_weight_options_are_refused(options):
    # TypeError is the run-time type checker's, where that is switched on.
    x = torch.zeros(1, 2)
    with pytest.raises((ValueError, TypeError)):
        importance_weights(x, x, ~x.bool(), **options)


@pytest.mark.parametrize(
    "criterion", [("token", 2.0, 0.5), ("token", -1.0, None), ("token", NAN, 1.0)]
)
def test_wrong_bounds_are_refused(criterion):
    x = torch.zeros(1, 2)
    with pytest.raises(ValueError, match="bounds"):
        rejection_mask(x, x, ~x.bool(), criteria=[criterion])
