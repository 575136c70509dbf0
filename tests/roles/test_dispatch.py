"""Rows on their way to ranks and back: each once, aligned, whatever the number of ranks."""

import numpy as np
import pytest
from role_parts import Bench, prompts, response, reward_of

from bestiary.batch import Batch
from bestiary.engines.local.streams import sample_key
from bestiary.errors import ConfigError
from bestiary.protocols import ComponentRef, Role, Sampling, Term
from bestiary.roles.services import spread
from bestiary.runtime.components import Components
from bestiary.runtime.roles import ModelSource, model_plans, on_models

WORLDS = (1, 2, 3)
GREEDY = Sampling(tag="baseline", greedy=True, trainable=False)


@pytest.fixture(scope="module")
def components(lab):
    return Components(lab)


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("n", [1, 2, 5])
def test_every_response_comes_once_and_in_the_order_of_prompts(components, world, n):
    bench = Bench(world, components)
    batch = bench.actor.generate(prompts(n), Sampling(n=3))
    assert list(batch["uid"]) == [f"p{p}" for p in range(n) for _ in range(3)]
    assert list(batch["sample_index"]) == [0, 1, 2] * n
    assert len(set(batch["row_key"])) == 3 * n
    got = batch.tokens("response_ids")
    for i in range(len(batch)):
        p, j = divmod(i, 3)
        key = int(sample_key(7, "train/sample", f"p{p}", 0, j, 0))
        assert got.row(i).tolist() == response(100 + p, key)
        assert batch.tokens("prompt_ids").row(i).tolist() == [100 + p] * (1 + p % 3)
    assert batch["response_len"].tolist() == got.lengths.tolist()


def test_columns_arrive_aligned_and_equal_for_any_number_of_ranks(components):
    seen = []
    for world in WORLDS:
        bench = Bench(world, components)
        batch = bench.actor.generate(prompts(5), Sampling(n=3))
        batch = batch.join(bench.reward.score(batch), bench.reference.logprobs(batch))
        ids, ref = batch.tokens("response_ids"), batch.tokens("ref_logprobs")
        assert ref.lengths.tolist() == ids.lengths.tolist()
        assert (ref.values == 2 * ids.values).all()
        assert (batch.tokens("rollout_logprobs").values == -ids.values).all()
        assert batch["reward"].tolist() == [reward_of(ids.row(i)) for i in range(15)]
        texts = bench.reward.texts(batch)
        assert texts == [" ".join(map(str, ids.row(i))) for i in range(15)]
        seen.append((ids.values.tolist(), batch["reward"].tolist(), ref.values.tolist()))
    assert seen[0] == seen[1] == seen[2]


@pytest.mark.parametrize("world", WORLDS)
def test_each_row_is_trained_on_exactly_once_with_weights_that_add_up(components, world):
    bench = Bench(world, components, tokens_per_micro=9)
    batch = bench.actor.generate(prompts(5), Sampling(n=3))
    batch = batch.join(bench.reward.score(batch))
    bench.actor.update(batch, Term("nll"), Term("nll", coef=0.5, weights="seq-mean-token-mean"))
    responses, totals, micro = [], np.zeros(2), set()
    for rank in bench.ranks:
        ((part, block),) = rank.updates[0]
        micro.add(len(part.micro))
        live = part.terms[0].row_weights > 0
        real = [i for m, rows in enumerate(part.micro) if m not in part.dummy for i in rows]
        assert sorted(real) == list(range(len(block))) or not live.any()
        ids = block.tokens["response_ids"]
        responses += [tuple(ids.row(i)) for i in np.flatnonzero(live)]
        for k, term in enumerate(part.terms):
            totals[k] += (term.row_weights * ids.lengths).sum()
    assert len(micro) == 1  # every rank joins the same number of collectives
    wanted = batch.tokens("response_ids")
    assert sorted(responses) == sorted(tuple(wanted.row(i)) for i in range(15))
    assert totals == pytest.approx([1.0, 0.5])


@pytest.mark.parametrize("world", WORLDS)
def test_math_19_the_baseline_is_scored_and_never_trained_on(components, world):
    bench = Bench(world, components)
    batch = bench.actor.generate(prompts(4), [Sampling(n=3), GREEDY])
    assert list(batch["tag"]) == ["sample"] * 3 + ["baseline"] + (["sample"] * 3 + ["baseline"]) * 3
    batch = batch.join(bench.reward.score(batch))
    rewards = batch["reward"].reshape(4, 4)
    assert (batch["baseline_reward"].reshape(4, 4) == rewards[:, 3:]).all()
    bench.actor.update(batch, Term("nll"))
    trained = sum(
        int((part.terms[0].row_weights > 0).sum())
        for rank in bench.ranks
        for part, _ in rank.updates[0]
    )
    assert trained == 12
    keys = {int(sample_key(7, "train/baseline", f"p{p}", 0, 0, 0)) % 1000 for p in range(4)}
    seen = {
        int(block.tokens["response_ids"].row(i)[1])
        for rank in bench.ranks
        for part, block in rank.updates[0]
        for i in np.flatnonzero(part.terms[0].row_weights > 0)
    }
    assert not keys & seen


def number(p, j, tag="sample"):
    """What a fake response carries: the last digits of its key."""
    return int(sample_key(7, f"train/{tag}", f"p{p}", 0, j, 0)) % 1000


def test_rew_04_a_group_whose_baseline_has_no_score_is_not_trained_on(components):
    bench = Bench(2, components, invalid=(number(1, 0, "baseline"),))
    batch = bench.actor.generate(prompts(3), [Sampling(n=3), GREEDY])
    batch = batch.join(bench.reward.score(batch))
    valid = batch["valid"].reshape(3, 4)
    assert valid[0].all()
    assert not valid[1].any()  # nothing to compare these with
    assert valid[2].all()
    assert np.isfinite(batch["baseline_reward"]).all()


@pytest.mark.parametrize("world", WORLDS)
def test_rew_04_invalid_samples_get_no_weight_and_leave_the_counts(components, world):
    missing = (number(0, 1), number(2, 0))
    bench = Bench(world, components, invalid=missing)
    batch = bench.actor.generate(prompts(3), Sampling(n=3))
    batch = batch.join(bench.reward.score(batch))
    assert batch["valid"].tolist() == [True, False, True, True, True, True, False, True, True]
    bench.actor.update(batch, Term("nll"), Term("nll", weights="seq-mean-token-sum"))
    tokens = sum(batch["response_len"][batch["valid"]])
    for rank in bench.ranks:
        ((part, block),) = rank.updates[0]
        ids = block.tokens["response_ids"]
        for i in range(len(block)):
            first, second = (term.row_weights[i] for term in part.terms)
            if int(ids.row(i)[1]) in missing:
                assert first == second == 0.0
            elif first:
                assert first == pytest.approx(1 / tokens)
                assert second == pytest.approx(1 / 7)


def test_a_sample_must_be_valid_for_every_scorer(components):
    """The reward is missing in one row and the cost in another: neither is trained on."""
    bench = Bench(1, components, invalid=(number(0, 1),))
    other = Bench(1, components, invalid=(number(1, 2),))
    batch = bench.actor.generate(prompts(2), Sampling(n=3))
    cost = other.cost.score(batch)
    batch = batch.join(bench.reward.score(batch), cost)
    assert batch["valid"].tolist() == [True, False, True, True, True, True]
    assert batch["valid_cost"].tolist() == [True, True, True, True, True, False]
    costs, rewards = batch["cost"].tolist(), batch["reward"].tolist()
    unscored = reward_of(batch.tokens("response_ids").row(1))
    assert costs[:5] == [rewards[0], unscored, *rewards[2:5]]
    bench.actor.update(batch, Term("nll"))
    ((part, block),) = bench.ranks[0].updates[0]
    trained = {int(block.tokens["response_ids"].row(i)[1]) for i in range(len(block))
               if part.terms[0].row_weights[i] > 0}  # fmt: skip
    assert number(0, 1) not in trained
    assert number(1, 2) not in trained
    assert len(trained) == 4


@pytest.mark.parametrize("world", WORLDS)
def test_data_06_an_empty_response_has_no_weight_and_costs_nothing(components, world):
    empty = (number(0, 0), number(1, 1))
    bench = Bench(world, components, empty=empty)
    batch = bench.actor.generate(prompts(2), Sampling(n=3))
    batch = batch.join(bench.reward.score(batch), bench.reference.logprobs(batch))
    assert batch["response_len"][0] == batch["response_len"][4] == 0
    assert batch.tokens("ref_logprobs").lengths.tolist() == batch["response_len"].tolist()
    bench.actor.update(batch, Term("nll", weights="seq-mean-token-mean"))
    weights = [
        (len(block.tokens["response_ids"].row(i)), part.terms[0].row_weights[i])
        for rank in bench.ranks
        for part, block in rank.updates[0]
        for i in range(len(block))
    ]
    assert all(np.isfinite(w) for _, w in weights)
    assert all(w == 0 for n, w in weights if n == 0)
    assert sum(n * w for n, w in weights) == pytest.approx(1.0)


def test_data_06_a_batch_of_empty_responses_still_reaches_every_rank(components):
    bench = Bench(3, components, empty=range(1000))
    batch = bench.actor.generate(prompts(2), Sampling(n=2))
    bench.actor.update(batch.join(bench.reward.score(batch)), Term("nll"))
    assert all(len(rank.updates) == 1 for rank in bench.ranks)
    parts = [part for rank in bench.ranks for part, _ in rank.updates[0]]
    assert all((part.terms[0].row_weights == 0).all() for part in parts)


def test_a_term_with_rows_of_its_own_adds_a_part_with_its_own_counts(components):
    bench = Bench(2, components)
    batch = bench.actor.generate(prompts(4), Sampling(n=2))
    ptx = bench.actor.generate(prompts(3, start=50), Sampling())
    bench.actor.update(batch, Term("nll"), Term("nll", coef=0.25, data=ptx))
    totals = np.zeros(2)
    for rank in bench.ranks:
        assert len(rank.updates[0]) == 2
        for k, (part, block) in enumerate(rank.updates[0]):
            (term,) = part.terms
            lengths = block.tokens["response_ids"].lengths
            totals[k] += (term.row_weights * lengths).sum()
            firsts = {int(block.tokens["prompt_ids"].row(i)[0]) for i in range(len(block))}
            assert (min(firsts) >= 150) == (k == 1)
    assert totals == pytest.approx([1.0, 0.25])


def test_a_term_whose_column_is_missing_names_it_before_anything_runs(components):
    bench = Bench(1, components)
    batch = bench.actor.generate(prompts(2), Sampling(n=2))
    with pytest.raises(ConfigError, match=r"loss=clip needs the column 'advantages'"):
        bench.actor.update(batch, Term("clip"))
    assert bench.ranks[0].updates == []


def test_a_frozen_role_and_an_update_without_terms_are_refused(components):
    bench = Bench(1, components)
    batch = bench.actor.generate(prompts(2), Sampling(n=2))
    with pytest.raises(ConfigError, match="frozen"):
        bench.reference.update(batch, Term("nll"))
    with pytest.raises(ConfigError, match="at least one term"):
        bench.actor.update(batch)


def test_two_samplings_of_one_call_need_different_tags(components):
    bench = Bench(1, components)
    with pytest.raises(ConfigError, match="different tags"):
        bench.actor.generate(prompts(1), [Sampling(), Sampling(n=2)])


def test_a_prompt_that_leaves_no_room_is_refused_with_both_numbers(components):
    bench = Bench(1, components)
    bench.actor.model.max_length = 10
    with pytest.raises(ConfigError, match=r"may reach 19 tokens.*takes 10"):
        bench.actor.generate(prompts(4), Sampling())


def test_each_call_is_in_the_ledger_under_its_phase(components):
    bench = Bench(2, components)
    batch = bench.actor.generate(prompts(4), Sampling(n=2))
    batch = batch.join(bench.reward.score(batch), bench.reference.logprobs(batch))
    bench.actor.update(batch, Term("nll"))
    found = bench.services.ledger.drain()
    assert found["time/rollout_s"] == 1.0  # the slowest rank, not the sum
    assert found["time/score_s"] == 5.0  # scoring and the reference
    assert found["rows"] == 2.0
    assert bench.services.ledger.drain() == {}


@pytest.mark.parametrize("world", [1, 2, 3, 7])
def test_spread_has_every_item_once_in_order(world):
    for sizes in ([5.0], [1.0] * 5, [9.0, 1, 1, 1, 1], [0.0, 0.0], []):
        runs = spread(np.array(sizes), world)
        assert len(runs) == world
        assert np.concatenate(runs).tolist() == list(range(len(sizes)))


def models_of(*roles, lora=None, paths=None):
    train = ComponentRef("train_engine", "fsdp", {"lora": lora})
    source = ModelSource(
        "path", "fp32", train, ComponentRef("rollout_engine", "local"), paths or {}
    )
    return model_plans(on_models(roles, lora=source.lora), source)


def test_roles_on_one_model_share_it():
    plans = models_of(Role("actor"), Role("reference", frozen=True, model="actor"))
    assert list(plans) == ["actor"]
    assert plans["actor"].spec.trainable
    plans = models_of(Role("actor", model="actor"), Role("critic", model="actor"))
    assert plans["actor"].spec.head == "lm+value"
    assert plans["actor"].rollout is not None


def test_a_role_can_have_weights_and_a_learning_rate_of_its_own():
    plans = models_of(
        Role("actor"), Role("critic", path="hub/rm", lr=0.5), paths={"hub/rm": "/models/rm"}
    )
    assert plans["critic"].spec.path == "/models/rm"
    assert plans["critic"].spec.lr == 0.5
    assert plans["critic"].rollout is None
    assert (plans["actor"].spec.path, plans["actor"].spec.lr) == ("path", None)


def test_roles_on_one_model_must_agree_on_where_it_comes_from():
    with pytest.raises(ConfigError, match=r"actor.*path"):
        models_of(Role("actor", path="a"), Role("critic", model="actor", path="b"))


def test_under_lora_the_reference_is_the_actor_without_its_adapter():
    roles = (
        Role("actor"),
        Role("reference", frozen=True),
        Role("teacher", True, "policy", path="t"),
    )
    found = {role.name: role for role in on_models(roles, lora=True)}
    assert (found["reference"].model, found["reference"].adapter) == ("actor", "off")
    assert (found["teacher"].model, found["teacher"].adapter) == ("teacher", "on")
    assert on_models(roles, lora=False)[1].model == "reference"


def test_a_batch_without_rows_is_an_error_that_says_so(components):
    bench = Bench(1, components)
    batch = bench.actor.generate(prompts(2), [Sampling(n=1, trainable=False)])
    assert isinstance(batch, Batch)
    with pytest.raises(ValueError, match="at least one row"):
        bench.actor.update(batch, Term("nll"))
