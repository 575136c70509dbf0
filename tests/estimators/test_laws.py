"""Laws of every estimator: padding, masks, order, shards, equal groups, invalid groups."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bestiary.batch import Rows
from bestiary.protocols import Stat

NAMES = (
    "group", "dr_grpo", "rloo", "opo", "gpg", "pass_at_k", "gdpo", "reinforce", "reinforce_pp",
    "reinforce_pp_baseline", "remax", "process", "otb", "gae", "vtrace",
)  # fmt: skip
TOGETHER = ("group", "dr_grpo", "rloo", "opo", "gpg", "pass_at_k")
"""Against the group: equal rewards teach nothing."""


def rows_for(kit, name, seed, **kwargs):
    x = kit.make(seed=seed, kl=name == "process", **kwargs)
    return x


def columns(made):
    return {name: x for name, x in made.items() if not isinstance(x, Stat)}


def same(a, b, tol=1e-9):
    for name, x in columns(a).items():
        assert torch.allclose(x.double(), columns(b)[name].double(), rtol=tol, atol=tol), name


def test_no_estimator_is_left_out(kit):
    assert set(NAMES) <= set(kit.names)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 1000))
def test_padding_and_what_is_masked_do_not_matter(kit, name, seed):
    x = rows_for(kit, name, seed)
    plain = kit.estimator(name)(x, kit.local)

    def wider(column):
        if column.dim() == 1:
            return column
        column = column.masked_fill(~x.mask, float("nan")) if column.is_floating_point() else column
        return torch.nn.functional.pad(column, (0, 3), value=float("nan"))

    mask = torch.nn.functional.pad(x.mask, (0, 3))
    more = Rows({n: wider(c) for n, c in x.items()}, mask, x.text)
    made = columns(kit.estimator(name)(more, kit.local))
    for key, column in columns(plain).items():
        if column.dim() == 1:
            assert torch.equal(made[key], column)
            continue
        assert torch.allclose(made[key][:, : column.shape[1]], column, atol=1e-12)
        assert not made[key][:, column.shape[1] :].any()
        assert not column[~x.mask].any()


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 1000))
def test_the_order_of_rows_does_not_matter(kit, name, seed):
    x = rows_for(kit, name, seed)
    order = torch.randperm(x.size, generator=torch.Generator().manual_seed(seed))
    made = columns(kit.estimator(name)(kit.take(x, order), kit.local))
    for key, column in columns(kit.estimator(name)(x, kit.local)).items():
        assert torch.allclose(made[key], column[order], atol=1e-9), key


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=4, deadline=None)
@given(seed=st.integers(0, 1000), world=st.integers(2, 3))
def test_the_split_over_ranks_does_not_matter(kit, name, seed, world):
    x = rows_for(kit, name, seed)
    scope = kit.options(name).scope
    if scope == "sample":
        return  # it sees all rows at once
    unit = x["group"] if scope == "group" else torch.arange(x.size)
    shards = [torch.nonzero(unit % world == rank)[:, 0] for rank in range(world)]
    split = kit.on_shards(kit.estimator(name), x, shards)
    whole = kit.estimator(name)(x, kit.local)
    same(split, whole)
    for key, stat in whole.items():
        if isinstance(stat, Stat):
            assert split[key].value == pytest.approx(stat.value, nan_ok=True)


@pytest.mark.parametrize("name", NAMES)
def test_invalid_rows_have_none_and_change_nothing_of_the_others(kit, name):
    x = rows_for(kit, name, 4)
    made = columns(kit.estimator(name)(x, kit.local))["advantages"]
    assert not made[1].any()
    if kit.options(name).scope == "row":
        return  # their columns stay part of nothing but themselves, shown by the zeros
    other = x.with_columns(reward=x["reward"].clone().index_fill_(0, torch.tensor([1]), 77.0))
    again = columns(kit.estimator(name)(other, kit.local))["advantages"]
    assert torch.equal(again, made)


@pytest.mark.parametrize("name", NAMES)
def test_a_batch_of_invalid_rows_is_all_zero(kit, name):
    x = rows_for(kit, name, 4)
    x = x.with_columns(valid=torch.zeros(x.size, dtype=torch.bool))
    for key, column in columns(kit.estimator(name)(x, kit.local)).items():
        if key == "advantages":
            assert not column.any()


@pytest.mark.parametrize("name", [*TOGETHER, "gdpo"])
def test_groups_of_equal_rewards_get_exactly_zero(kit, name):
    x = kit.make(seed=1, invalid=False)
    equal = x.with_columns(reward=torch.full((x.size,), 0.1))
    equal = Rows(dict(equal), x.mask, {"parts": [{"a": 0.3, "b": 0.1}] * x.size})
    made = columns(kit.estimator(name)(equal, kit.local))["advantages"]
    assert not made.any()


@pytest.mark.parametrize("name", TOGETHER)
@pytest.mark.parametrize("shift", [3.0, -7.5])
def test_a_shift_of_all_rewards_does_not_matter(kit, name, shift):
    if name == "gpg":
        return  # its scale counts the rewards that are exactly 0
    x = kit.make(seed=6, invalid=False)
    moved = x.with_columns(reward=x["reward"] + shift)
    options = {"singleton": "zero"} if name in ("group", "rloo", "dr_grpo") else {}
    same(
        kit.estimator(name, **options)(moved, kit.local),
        kit.estimator(name, **options)(x, kit.local),
    )


@pytest.mark.parametrize(
    ("name", "power"), [("dr_grpo", 1), ("rloo", 1), ("opo", 1), ("gpg", 1), ("reinforce", 1)]
)
def test_advantages_grow_with_the_scale_of_rewards(kit, name, power):
    x = kit.make(seed=6, invalid=False)
    scaled = kit.estimator(name)(x.with_columns(reward=x["reward"] * 4.0), kit.local)
    plain = kit.estimator(name)(x, kit.local)
    assert torch.allclose(scaled["advantages"], plain["advantages"] * 4.0**power)


@pytest.mark.parametrize("name", ["reinforce_pp", "reinforce_pp_baseline", "gae", "vtrace", "gdpo"])
def test_whitened_advantages_have_mean_zero_and_deviation_one(kit, name):
    x = kit.make(seed=8)
    made = kit.estimator(name)(x, kit.local)["advantages"]
    live = x.mask & x["valid"][:, None]
    ddof = getattr(kit.options(name)(), "ddof", 1)
    ddof = 1 if name == "gdpo" else ddof
    assert made[live].mean().item() == pytest.approx(0.0, abs=1e-9)
    assert made[live].std(correction=ddof).item() == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_declared_is_what_is_read(kit, name):
    options = kit.options(name)

    seen = set()

    class Watched(Rows):
        def __getitem__(self, key):
            seen.add(key)
            return super().__getitem__(key)

        def with_columns(self, **columns):
            return Watched({**self._columns, **columns}, self.mask, self.text)

    x = kit.make(seed=1, kl=True)
    watched = Watched(dict(x), x.mask, x.text)
    made = kit.estimator(name)(watched, kit.local)
    always = {"group", "valid", "response_len", "reward"}
    assert seen <= options.requires | options.optional | always
    assert set(columns(made)) == options.provides
