"""The micro-batch plan covers every row once and gives each rank the same number of passes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bestiary.engines.microbatch import plan_microbatches


def check(plan, n):
    rows = np.concatenate([r.rows[~r.padding] for r in plan.ranks])
    assert sorted(rows.tolist()) == list(range(n))
    assert len({len(r.micro) for r in plan.ranks}) == 1
    for rank in plan.ranks:
        real = [i for k, m in enumerate(rank.micro) if k not in rank.dummy for i in m]
        if not rank.padding.all():
            assert sorted(real) == list(range(len(rank.rows)))


@given(
    lens=st.lists(st.tuples(st.integers(1, 40), st.integers(0, 60), st.integers(0, 6)), min_size=1),
    world=st.integers(1, 5),
    budget=st.integers(1, 200),
)
@settings(max_examples=200, deadline=None)
def test_every_row_once_and_equal_counts(lens, world, budget):
    prompt = {g: p for p, _, g in lens}
    prompts = np.array([g for *_, g in lens])
    plens = np.array([prompt[g] for g in prompts])
    rlens = np.array([r for _, r, _ in lens])
    plan = plan_microbatches(plens, rlens, prompts, world=world, tokens_per_micro=budget)
    check(plan, len(lens))
    for rank in plan.ranks:
        for number, micro in enumerate(rank.micro):
            if number in rank.dummy or len(micro) == 1:
                continue
            its = rank.rows[list(micro)]
            once = {int(prompts[i]): int(plens[i]) for i in its}
            assert sum(once.values()) + int(rlens[its].sum()) <= budget


def test_data_01_odd_sizes_lose_no_row():
    for n, world in ((124, 1), (10, 4), (2, 4)):
        ones = np.ones(n, dtype=np.int64)
        plan = plan_microbatches(ones, ones, np.arange(n), world=world, tokens_per_micro=16)
        check(plan, n)
    sizes = plan_microbatches(
        np.ones(124, int), np.ones(124, int), np.arange(124), world=1, tokens_per_micro=16
    )
    assert [len(m) for m in sizes.ranks[0].micro] == [8] * 15 + [4]


def test_attention_makes_long_rows_cost_more():
    ones, lens = np.ones(4, dtype=np.int64), np.array([99, 60, 60, 60])

    def rows(quadratic):
        plan = plan_microbatches(
            ones, lens, np.arange(4), world=2, tokens_per_micro=1000, quadratic=quadratic
        )
        return sorted(len(r.rows) for r in plan.ranks)

    assert rows(0.0) == [2, 2]  # tokens: 100 + 61 against 61 + 61
    # 100 + (1² + 99·101)/4 = 2600 alone against 3·(61 + (1² + 60·62)/4) = 2974.
    assert rows(0.25) == [1, 3]


def test_dist_02_ranks_run_the_same_number_of_microbatches():
    prompt = np.ones(5, dtype=np.int64)
    response = np.array([89, 79, 69, 24, 19])
    plan = plan_microbatches(prompt, response, np.arange(5), world=2, tokens_per_micro=100)
    check(plan, 5)


def test_a_rank_without_rows_gets_a_weightless_one():
    plan = plan_microbatches(
        np.array([3]), np.array([4]), np.array([0]), world=3, tokens_per_micro=100
    )
    assert [bool(r.padding.all()) for r in plan.ranks] == [False, True, True]
    assert all(r.dummy == {0} for r in plan.ranks[1:])


def test_rows_of_one_prompt_stay_together():
    prompts = np.repeat(np.arange(4), 4)
    plan = plan_microbatches(
        np.full(16, 10), np.full(16, 5), prompts, world=2, tokens_per_micro=1000
    )
    for rank in plan.ranks:
        assert len(rank.micro) == 1
        assert len(set(prompts[rank.rows].tolist())) == 2


@given(
    lens=st.lists(st.tuples(st.integers(1, 40), st.integers(0, 60), st.integers(0, 6)), min_size=1),
    world=st.integers(1, 5),
    budget=st.integers(1, 200),
)
@settings(max_examples=200, deadline=None)
def test_whole_groups_are_never_split(lens, world, budget):
    prompts = np.array([g for *_, g in lens])
    plens, rlens = (np.array(x) for x in list(zip(*lens, strict=True))[:2])
    for group in set(prompts.tolist()):
        plens[prompts == group] = plens[prompts == group][0]
    plan = plan_microbatches(
        plens, rlens, prompts, world=world, tokens_per_micro=budget, whole=True
    )
    check(plan, len(lens))
    homes = {}
    for number, rank in enumerate(plan.ranks):
        for k, micro in enumerate(rank.micro):
            if k in rank.dummy:
                continue
            groups = prompts[rank.rows[list(micro)]]
            for group in set(groups.tolist()):
                homes.setdefault(group, []).append((number, k))
            its = rank.rows[list(micro)]
            tokens = sum(plens[prompts == g][0] for g in set(groups.tolist())) + rlens[its].sum()
            assert tokens <= budget or len(set(groups.tolist())) == 1
    assert all(len(home) == 1 for home in homes.values())


def test_a_whole_group_above_the_budget_has_a_micro_batch_of_its_own():
    prompts = np.array([0, 0, 1, 1, 2, 2])
    lens = np.array([50, 50, 3, 3, 3, 3])
    ones = np.ones(6, dtype=np.int64)
    (rank,) = plan_microbatches(ones, lens, prompts, world=1, tokens_per_micro=20, whole=True).ranks
    assert [prompts[rank.rows[list(m)]].tolist() for m in rank.micro] == [[0, 0], [1, 1, 2, 2]]
    two = plan_microbatches(ones, lens, prompts, world=2, tokens_per_micro=20, whole=True)
    assert [len(set(prompts[r.rows].tolist())) for r in two.ranks] == [1, 2]
    four = plan_microbatches(ones, lens, prompts, world=4, tokens_per_micro=20, whole=True)
    assert [bool(r.padding.all()) for r in four.ranks] == [False, False, False, True]
    assert four.ranks[3].dummy == {0}


def test_an_empty_batch_is_refused():
    none = np.zeros(0, dtype=np.int64)
    with pytest.raises(ValueError, match="at least one row"):
        plan_microbatches(none, none, none, world=1, tokens_per_micro=10)
