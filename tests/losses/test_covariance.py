"""Clip-Cov and KL-Cov: which tokens are chosen, and what the loss does to them."""

import numpy as np
import pytest
import torch

from bestiary.distributed.collectives import LocalReduce
from bestiary.plugins.manager import load_plugins
from bestiary.protocols import ModelOutput
from bestiary.testing.data import example_rows

REGISTRY = load_plugins().registry


def build(name, **options):
    component = REGISTRY.get("loss", name)
    return component.build(component.options_class()(**options))


def prepared(loss, x):
    return x.with_columns(selected=loss.prepare(x, LocalReduce())["selected"])


def covariances(x):
    """{(row, token): covariance} of the tokens that count, by a loop."""
    live = [
        (i, t)
        for i in range(x.size)
        for t in range(x.mask.shape[1])
        if bool(x.mask[i, t]) and bool(x["valid"][i])
    ]
    a = {p: float(x["advantages"][p]) for p in live}
    b = {p: float(x["old_logprobs"][p]) for p in live}
    mean_a, mean_b = np.mean(list(a.values())), np.mean(list(b.values()))
    return {p: (a[p] - mean_a) * (b[p] - mean_b) for p in live}


def chosen(x):
    return {tuple(p) for p in x["selected"].nonzero().tolist()}


def test_kl_cov_takes_the_largest_covariances():
    x = example_rows(3)
    cov = covariances(x)
    k = int(0.2 * len(cov))
    assert k >= 3
    found = chosen(prepared(build("kl_cov", ratio=0.2), x))
    assert found == set(sorted(cov, key=cov.get)[-k:])


def test_clip_cov_draws_from_the_range_only():
    x = example_rows(3)
    cov = covariances(x)
    fit = {p for p, c in cov.items() if 0.1 < c < 0.8}
    k = int(0.1 * len(cov))
    assert len(fit) > k >= 2
    loss = build("clip_cov", ratio=0.1, cov_low=0.1, cov_high=0.8)
    found = chosen(prepared(loss, x))
    assert len(found) == k
    assert found < fit
    everything = build("clip_cov", ratio=1.0, cov_low=0.1, cov_high=0.8)
    assert chosen(prepared(everything, x)) == fit
    none = build("clip_cov", cov_low=90.0, cov_high=99.0)
    assert not chosen(prepared(none, x))


def test_the_draw_belongs_to_the_row_wherever_it_stands():
    x = example_rows(3)
    loss = build("clip_cov", ratio=0.1, cov_low=0.1, cov_high=0.8)
    order = torch.from_numpy(np.random.default_rng(0).permutation(x.size))
    moved = type(x)({n: c[order] for n, c in x.items()}, x.mask[order])
    assert torch.equal(prepared(loss, moved)["selected"], prepared(loss, x)["selected"][order])


def loss_and_gradient(loss, x, now):
    leaf = now.clone().requires_grad_()
    value, _ = loss(ModelOutput(logprobs=leaf), x)
    (grad,) = torch.autograd.grad(value.sum(), leaf)
    return value.detach(), grad


def test_clip_cov_is_clip_without_the_chosen_tokens():
    x = example_rows(3)
    loss = build("clip_cov", ratio=0.3, cov_low=0.0, cov_high=9.0)
    x = prepared(loss, x)
    value, grad = loss_and_gradient(loss, x, x["now"])
    plain, slope = loss_and_gradient(build("clip"), x, x["now"])
    out = x["selected"].bool()
    assert out.any()
    assert not value[out].any()
    assert not grad[out].any()
    assert torch.equal(value[~out], plain[~out])
    assert torch.equal(grad[~out], slope[~out])


def test_kl_cov_by_a_loop_with_its_gradient():
    x = example_rows(3)
    loss = build("kl_cov", ratio=0.2, kl_coef=0.7)
    x = prepared(loss, x)
    value, grad = loss_and_gradient(loss, x, x["now"])
    for i in range(x.size):
        for t in range(x.mask.shape[1]):
            if not x.mask[i, t]:
                assert value[i, t] == grad[i, t] == 0.0
                continue
            gap = float(x["now"][i, t] - x["old_logprobs"][i, t])
            a, s = float(x["advantages"][i, t]), float(x["selected"][i, t])
            assert float(value[i, t]) == pytest.approx(-a * np.exp(gap) + 0.7 * s * abs(gap))
            expected = -a * np.exp(gap) + 0.7 * s * np.sign(gap)
            assert float(grad[i, t]) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("clip_cov", {"ratio": 0.0}),
        ("clip_cov", {"cov_low": 5.0}),
        ("kl_cov", {"ratio": 2.0}),
        ("kl_cov", {"kl_coef": -1.0}),
    ],
)
def test_impossible_options_are_refused(name, options):
    with pytest.raises(ValueError, match=next(iter(options))):
        build(name, **options)
