import math
from pathlib import Path

import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from bestiary.ops import logits as module
from bestiary.ops.kl import kl_estimate
from bestiary.ops.logits import full_kl
from bestiary.ops.policy import entropy_from_logits, token_logprobs

FAULTS = {
    fault["id"]: fault
    for fault in yaml.safe_load((Path(__file__).parents[1] / "cases/faults.yaml").read_text())
}
close = torch.testing.assert_close
laws = settings(max_examples=40, deadline=None)  # shared machines stall now and then


def f64(values):
    return torch.tensor(values, dtype=torch.float64)


def random_case(seed, shape=(2, 3), vocab=5):
    g = torch.Generator().manual_seed(seed)
    logits = torch.randn(*shape, vocab, generator=g, dtype=torch.float64)
    return logits, torch.randint(0, vocab, shape, generator=g)


def plain_logprobs(logits, ids, temperature):
    return torch.log_softmax(logits / temperature, -1).gather(-1, ids.unsqueeze(-1)).squeeze(-1)


def plain_entropy(logits, temperature):
    logprobs = torch.log_softmax(logits / temperature, -1)
    return -(logprobs.exp() * logprobs).sum(-1)


@pytest.fixture(params=[1, 7, 1 << 22])
def block_elements(request, monkeypatch):
    """Blocks of one row, of a few rows, and everything at once."""
    monkeypatch.setattr(module, "_BLOCK_ELEMENTS", request.param)


def test_MATH_12_entropy_is_of_the_sampling_distribution_whatever_the_call_order():
    case = FAULTS["MATH-12"]
    logits, temperature = f64([[case["input"]["logits"]]]), case["input"]["temperature"]
    before = logits.clone()
    for _ in range(2):
        token_logprobs(logits, torch.zeros(1, 1, dtype=torch.int64), temperature)
        entropy = entropy_from_logits(logits, temperature)
        close(entropy, f64([[case["expected"]["entropy"]]]), rtol=0, atol=1e-9)
    assert torch.equal(logits, before)


def test_MATH_13_logprobs_use_the_sampling_temperature():
    case = FAULTS["MATH-13"]
    logits = f64([[case["input"]["logits"]] * 2])
    ids = torch.tensor([case["input"]["tokens"]])
    got = token_logprobs(logits, ids, case["input"]["temperature"])
    close(got, f64([case["expected"]["logprobs"]]), rtol=0, atol=1e-9)
    again = token_logprobs(logits, ids, temperature=case["input"]["temperature"])
    assert (again - got).exp().tolist() == [case["expected"]["ratio_before_update"]]


def test_MATH_15_token_at_p_uses_the_logits_of_p_minus_one():
    case = FAULTS["MATH-15"]
    ids, start = torch.tensor([case["input"]["ids"]]), case["input"]["prompt_length"]
    logits = f64([[[t, 0.0, -t] for t in range(5)]])
    got = token_logprobs(logits[:, start - 1 : -1], ids[:, start:])
    close(got, f64([case["expected"]["completion_logprobs"]]), rtol=0, atol=1e-9)


@pytest.mark.usefixtures("block_elements")
@pytest.mark.parametrize("shape", [(), (4,), (2, 3), (2, 2, 2)])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_blocks_change_neither_value_nor_gradient(shape, temperature):
    raw, ids = random_case(1, shape)
    upstream = torch.rand(shape, dtype=torch.float64)
    for ours, plain in (
        (
            lambda x: token_logprobs(x, ids, temperature),
            lambda x: plain_logprobs(x, ids, temperature),
        ),
        (lambda x: entropy_from_logits(x, temperature), lambda x: plain_entropy(x, temperature)),
    ):
        a, b = raw.clone().requires_grad_(), raw.clone().requires_grad_()
        got, wanted = ours(a), plain(b)
        close(got, wanted, rtol=1e-13, atol=1e-13)
        got.backward(upstream)
        wanted.backward(upstream)
        close(a.grad, b.grad, rtol=1e-12, atol=1e-13)


@pytest.mark.usefixtures("block_elements")
@pytest.mark.parametrize("shape", [(5,), (4, 3), (2, 5, 3), (2, 3, 2, 3), (0, 3)])
def test_blocks_are_small_and_cover_every_row_once(shape):
    seen = torch.zeros(shape)
    for at in module._blocks(shape):
        assert seen[at].numel() <= max(module._BLOCK_ELEMENTS, shape[-1])
        seen[at] += 1
    assert torch.equal(seen, torch.ones(shape))


@laws
@given(seed=st.integers(0, 1000), temperature=st.sampled_from([0.5, 1.0, 2.0]))
def test_gradients_against_finite_differences(seed, temperature):
    logits, ids = random_case(seed)
    logits.requires_grad_()
    assert torch.autograd.gradcheck(lambda x: token_logprobs(x, ids, temperature), logits)
    assert torch.autograd.gradcheck(lambda x: entropy_from_logits(x, temperature), logits)


@pytest.mark.usefixtures("block_elements")
def test_slices_of_the_model_output_need_not_be_contiguous():
    full, ids = random_case(2, (3, 6))
    full.requires_grad_()
    token_logprobs(full[:, 2:-1], ids[:, 3:]).sum().backward()
    got, full.grad = full.grad, None
    plain_logprobs(full[:, 2:-1], ids[:, 3:], 1.0).sum().backward()
    close(got, full.grad, rtol=1e-12, atol=1e-13)


def test_impossible_tokens_have_no_entropy_and_no_gradient():
    logits = f64([[0.0, 0.0, -torch.inf]]).requires_grad_()
    entropy = entropy_from_logits(logits)
    entropy.sum().backward()
    close(entropy, f64([2.0]).log())
    assert logits.grad.tolist() == [[0.0, 0.0, 0.0]]
    ids = torch.tensor([2])
    assert token_logprobs(logits, ids).item() == -torch.inf


def test_DIST_08_padded_vocabulary_takes_no_probability_when_it_is_minus_infinity():
    case = FAULTS["DIST-08"]
    logits = torch.arange(10, dtype=torch.float64)[None] * 0.1
    padded = torch.cat([logits, torch.full((1, 2), -torch.inf, dtype=torch.float64)], 1)
    got = token_logprobs(padded, torch.tensor([case["input"]["token"]]))
    close(got, f64([case["expected"]["logprob"]]), rtol=0, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_logits_give_float32_results_and_half_gradients(dtype):
    raw, ids = random_case(3)
    logits = raw.to(dtype).requires_grad_()
    got = token_logprobs(logits, ids, 0.7)
    assert got.dtype == torch.float32
    close(got, plain_logprobs(logits.detach().float(), ids, 0.7))
    (got.sum() + entropy_from_logits(logits).sum()).backward()
    assert logits.grad.dtype == dtype


def test_large_logits_do_not_overflow():
    logits = torch.tensor([[1e5, 0.0], [88.0, 89.0]], requires_grad=True)
    ids = torch.tensor([1, 0])
    (token_logprobs(logits, ids, 0.5).sum() + entropy_from_logits(logits, 0.5).sum()).backward()
    assert logits.grad.isfinite().all()


def test_changing_the_logits_before_backward_is_noticed():
    leaf = torch.ones(2, 3, requires_grad=True)
    logits = leaf * 1
    loss = token_logprobs(logits, torch.tensor([0, 1])).sum()
    logits.div_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("temperature", [0, -1.0, float("nan"), float("inf")])
def test_temperatures_that_are_not_positive_are_refused(temperature):
    with pytest.raises(ValueError, match="temperature"):
        entropy_from_logits(torch.zeros(1, 2), temperature)


def test_ids_of_another_shape_are_refused():
    # TypeError is the run-time type checker's, where that is switched on.
    with pytest.raises((ValueError, TypeError)):
        token_logprobs(torch.zeros(2, 3, 4), torch.zeros(2, 2, dtype=torch.int64))


# --------------------------------------------------------------------------- KL over the vocabulary


def plain_kl(logits, ref, temperature):
    p = torch.log_softmax(logits / temperature, -1)
    q = torch.log_softmax(ref / temperature, -1)
    return (p.exp() * (p - q)).sum(-1)


@given(seed=st.integers(0, 999), temperature=st.floats(0.3, 3.0))
@laws
def test_the_full_kl_is_the_sum_over_the_vocabulary_with_its_gradient(seed, temperature):
    logits, _ = random_case(seed)
    ref, _ = random_case(seed + 1000)
    mine, theirs = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    found, wanted = full_kl(mine, ref, temperature), plain_kl(theirs, ref, temperature)
    close(found, wanted, rtol=1e-10, atol=1e-12)
    assert bool((found >= -1e-12).all())
    weights = torch.randn(found.shape, dtype=torch.float64)
    (found * weights).sum().backward()
    (wanted * weights).sum().backward()
    close(mine.grad, theirs.grad, rtol=1e-9, atol=1e-12)


def test_the_full_kl_in_blocks(block_elements):
    logits, _ = random_case(0)
    ref, _ = random_case(1)
    close(full_kl(logits, ref, 0.7), plain_kl(logits, ref, 0.7), rtol=1e-12, atol=1e-12)
    assert torch.autograd.gradcheck(lambda z: full_kl(z, ref, 0.7), logits.requires_grad_())


def test_the_full_kl_by_hand_and_at_its_ends():
    # p = (3/4, 1/4), q = (1/2, 1/2)
    p, q = f64([[math.log(3.0), 0.0]]), f64([[0.0, 0.0]])
    wanted = 0.75 * math.log(1.5) + 0.25 * math.log(0.5)
    close(full_kl(p, q), f64([wanted]), rtol=1e-12, atol=0)
    assert full_kl(p, p).item() == 0.0
    excluded = f64([[0.0, -math.inf]])
    close(full_kl(excluded, q), f64([math.log(2.0)]), rtol=1e-12, atol=0)
    assert full_kl(q, excluded).item() == math.inf


def test_the_mean_of_the_estimates_is_the_full_kl():
    logits, _ = random_case(5, shape=(1,), vocab=4)
    ref, _ = random_case(6, shape=(1,), vocab=4)
    p, q = torch.log_softmax(logits, -1)[0], torch.log_softmax(ref, -1)[0]
    mask = torch.ones(4, 1, dtype=torch.bool)
    for kind in ("k1", "k3"):
        each = kl_estimate(p[:, None], q[:, None], mask, kind=kind)[:, 0]
        assert (p.exp() * each).sum().item() == pytest.approx(full_kl(logits, ref).item())
