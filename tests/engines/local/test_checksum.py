import time

import pytest
import torch

from bestiary.engines.checksum import Checksum


def digest(pairs):
    checksum = Checksum()
    for name, tensor in pairs:
        checksum.add(name, tensor)
    return checksum.hexdigest()


@pytest.fixture
def weights():
    g = torch.Generator().manual_seed(0)
    sizes = {"a": (3, 5), "b": (7,), "c": (300, 257), "d": (1,)}
    return {name: torch.randn(size, generator=g) for name, size in sizes.items()}


def test_order_of_tensors_does_not_matter(weights):
    pairs = list(weights.items())
    assert digest(pairs) == digest(reversed(pairs))


def test_layout_and_upcast_dtype_do_not_matter(weights):
    c = weights["c"]
    assert digest([("c", c)]) == digest([("c", c.t().contiguous().t())])
    half = c.to(torch.bfloat16)
    assert digest([("c", half)]) == digest([("c", half.float())])
    assert digest([("c", c)]) != digest([("c", half)])


def swap_elements(w):
    flat = w["c"].view(-1)
    flat[[0, 70000]] = flat[[70000, 0]]


def swap_neighbours(w):
    w["b"][[1, 2]] = w["b"][[2, 1]]


def swap_tensors(w):
    w["a"], w["b"] = w["b"], w["a"]


def transpose(w):
    w["a"] = w["a"].t().contiguous()


def one_bit(w):
    w["c"].view(torch.int32).view(-1)[12345] ^= 1


def lose(w):
    del w["d"]


def zero(w):
    w["d"].zero_()


@pytest.mark.parametrize(
    "damage", [swap_elements, swap_neighbours, swap_tensors, transpose, one_bit, lose, zero]
)
def test_damage_is_seen(weights, damage):
    before = digest(weights.items())
    damage(weights)
    assert digest(weights.items()) != before


def test_it_is_cheap():
    big = torch.randn(10_000_000)
    checksum = Checksum()
    checksum.add("warm", big[:100000])
    start = time.process_time()
    checksum.add("w", big)
    assert time.process_time() - start < 0.5  # about 0.01 s on a quiet machine
