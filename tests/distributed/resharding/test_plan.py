"""Boxes and plans: against element-wise simulation, published layouts and formulae."""

import itertools
import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bestiary.distributed.resharding.cost import compare, count, formulas
from bestiary.distributed.resharding.grouping import choose_target, separate_target
from bestiary.distributed.resharding.layout import (
    Layout,
    Parameter,
    cells,
    chunk,
    contiguous,
    overlap,
    volume,
)
from bestiary.distributed.resharding.mesh import Mesh
from bestiary.distributed.resharding.plan import plan_reshard
from bestiary.distributed.resharding.shapes import MODELS, find_shape, parameters_of, shape_of
from bestiary.errors import ModelError, PlacementError

laws = settings(max_examples=60, deadline=None)


def model(layers=2):
    """Matrices cut by columns, by rows and not at all, with sizes that do not divide."""
    made = [Parameter("embed", (11, 4), 0)]
    for i in range(layers):
        made += [
            Parameter(f"{i}.q", (8, 4), 0, i, blocks=4),
            Parameter(f"{i}.k", (4, 4), 0, i, blocks=2, queries=4),
            Parameter(f"{i}.o", (4, 8), 1, i, blocks=4),
            Parameter(f"{i}.down", (4, 7), 1, i),
            Parameter(f"{i}.norm", (4,), None, i),
        ]
    return [*made, Parameter("head", (11, 4), 0, layers)]


MESHES = [
    Mesh(pp=a, dp=b, fsdp=c, tp=d)
    for a in (1, 2)
    for b in (1, 2, 3)
    for c in (1, 2, 3)
    for d in (1, 2, 4)
    if a * b * c * d <= 8
]


def whole(parameters):
    start = np.cumsum([0, *(p.numel for p in parameters)])
    return [
        np.arange(a, a + p.numel).reshape(p.shape) for p, a in zip(parameters, start, strict=False)
    ]


def cut(values, box):
    return values[tuple(slice(a, b) for a, b in box)]


def simulate(parameters, plan):
    """Deliver every move element by element; checks that senders have what they send."""
    values = whole(parameters)
    for number, p in enumerate(parameters):
        for rank in plan.target.place:
            want = plan.target.box(p, rank)
            if want is None:
                assert not [m for m in plan.moves(number) if m.receiver == rank]
                continue
            got = np.full([b - a for a, b in want], -1)
            for move in plan.moves(number):
                if move.receiver != rank:
                    continue
                have = plan.source.box(p, move.sender)
                inside = [
                    low >= a and high <= b
                    for (low, high), (a, b) in zip(move.box, have, strict=True)
                ]
                assert all(inside)
                place = tuple(
                    slice(low - a, high - a)
                    for (low, high), (a, _) in zip(move.box, want, strict=True)
                )
                assert (got[place] == -1).all()  # once only
                got[place] = cut(values[number], move.box)
            assert np.array_equal(got, cut(values[number], want))


def elements(parameters, box_of):
    """The set of elements that boxes cover, by brute force."""
    found = set()
    for p, values in zip(parameters, whole(parameters), strict=True):
        box = box_of(p)
        if box is not None:
            found |= set(cut(values, box).reshape(-1).tolist())
    return found


@given(st.sampled_from(MESHES), st.sampled_from([(1, 1), (1, 2), (1, 4), (2, 1), (2, 2)]))
@laws
def test_every_element_arrives_once_and_nothing_is_sent_twice(mesh, generate):
    parameters = model()
    source = Layout(mesh, layers=2)
    layout = Layout(Mesh(pp=generate[0], tp=generate[1]), layers=2)
    if mesh.size % (generate[0] * generate[1]):
        with pytest.raises(PlacementError, match="do not divide"):
            choose_target(source, layout, parameters)
        return
    target = choose_target(source, layout, parameters)
    plan = plan_reshard(parameters, source, target)
    simulate(parameters, plan)
    received = plan.received()
    for rank in source.ranks:
        want = elements(parameters, lambda p, r=rank: target.box(p, r))
        have = elements(parameters, lambda p, r=rank: source.box(p, r))
        assert received[rank] == len(want - have)  # the lower bound
    counted = count(parameters, source, target, 1)
    assert counted.received == received
    # Each shard is held by as many ranks as any other, and a tensor group has one of each.
    shards = sorted(target.place.values())
    assert len({shards.count(s) for s in set(shards)}) == 1
    for group in target.tensor_groups():
        assert len({target.place[r] for r in group}) == len(group) == generate[0] * generate[1]


@given(st.sampled_from(MESHES), st.sampled_from([Mesh(), Mesh(tp=2), Mesh(pp=2), Mesh(pp=2, tp=2)]))
@laws
def test_separate_trainers_and_generators(mesh, generate):
    parameters = model()
    source = Layout(mesh, layers=2)
    target = separate_target(Layout(generate, layers=2, offset=mesh.size))
    plan = plan_reshard(parameters, source, target)
    simulate(parameters, plan)
    for rank in target.place:
        want = elements(parameters, lambda p, r=rank: target.box(p, r))
        assert plan.received()[rank] == len(want)
    for rank in source.ranks:
        assert plan.received()[rank] == 0


@given(st.sampled_from(MESHES), st.integers(1, 400), st.integers(0, 40))
@laws
def test_buckets_cover_every_parameter_in_order(mesh, limit, small):
    parameters = model()
    source = Layout(mesh, layers=2)
    target = choose_target(source, Layout(Mesh(), layers=2), parameters)
    plan = plan_reshard(parameters, source, target)
    runs = plan.buckets(limit, small)
    assert [i for run in runs for i in run] == list(range(len(parameters)))
    needs = plan.needs(small)
    for run in runs:
        assert len(run) == 1 or sum(needs[i] for i in run) <= limit


@given(st.sampled_from(MESHES), st.sampled_from([Mesh(), Mesh(tp=2), Mesh(pp=2)]))
@laws
def test_a_rank_finds_its_own_moves_without_those_of_others(mesh, generate):
    parameters = model(4)
    source = Layout(mesh, layers=4)
    target = separate_target(Layout(generate, layers=4, offset=mesh.size))
    if mesh.size % generate.size == 0 and mesh.dp > 1:
        target = choose_target(source, Layout(generate, layers=4), parameters)
    plan = plan_reshard(parameters, source, target)
    for rank in plan.ranks:
        for number in range(len(parameters)):
            every = [m for m in plan.moves(number) if rank in (m.sender, m.receiver)]
            assert list(plan.moves(number, rank)) == every


@given(
    st.sampled_from([m for m in MESHES if m.size in (2, 4, 6)]),
    st.sampled_from([Mesh(tp=2), Mesh(pp=2), Mesh(tp=3), Mesh(pp=2, tp=2), Mesh(pp=3, tp=2)]),
)
@laws
def test_no_other_sharing_of_the_ranks_keeps_more(mesh, generate):
    """Against every assignment with as many ranks for each shard."""
    if mesh.size % generate.size:
        return
    parameters = model(3)
    source, layout = Layout(mesh, layers=3), Layout(generate, layers=3)
    places = [(pp, tp) for pp in range(generate.pp) for tp in range(generate.tp)]
    target = choose_target(source, layout, parameters)

    def kept(rank, place):
        return sum(volume(overlap(source.box(p, rank), target.shard(p, place))) for p in parameters)

    table = {(r, p): kept(r, p) for r in source.ranks for p in places}
    shares = [place for place in places for _ in range(mesh.size // len(places))]
    best = max(
        sum(table[r, p] for r, p in enumerate(order))
        for order in set(itertools.permutations(shares))
    )
    assert sum(table[r, target.place[r]] for r in source.ranks) == best


def test_stages_and_parts_are_merged_together():
    """pp4.tp4 to pp2.tp2: ranks of two stages and two parts take one shard and lose nothing."""
    parameters = [Parameter(f"{i}", (8, 8), 0, i) for i in range(8)]
    source = Layout(Mesh(pp=4, tp=4), layers=8)
    ways, counted, target = compare(parameters, source, Layout(Mesh(pp=2, tp=2), layers=8), 1)
    assert target.micro_groups(source)[0] == [0, 1, 4, 5]
    assert set(counted.received.values()) == {96}  # 128 of the shard, 32 of them its own
    assert set(counted.redundant.values()) == {0}
    assert {way.way: way.received for way in ways}["HybridFlow"] == 96


def test_replicas_share_the_sending():
    parameters = [Parameter(f"w{i}", (8, 4), 0) for i in range(8)]
    source = Layout(Mesh(dp=4))
    plan = plan_reshard(parameters, source, separate_target(Layout(Mesh(), offset=4)))
    sent = plan.sent()
    assert [sent[r] for r in range(4)] == [64] * 4


@given(st.sampled_from([Mesh(), Mesh(tp=2), Mesh(pp=2)]), st.integers(1, 4), st.integers(1, 13))
@laws
def test_holders_take_turns_within_every_class(generate, replicas, layers):
    """No replica sends more than one piece a class above another, whatever the order of sizes."""
    parameters = [
        p
        for i in range(layers)
        for p in (Parameter(f"{i}.a", (8, 8), 0), Parameter(f"{i}.b", (4,)))
    ]
    source = Layout(Mesh(dp=replicas))
    plan = plan_reshard(
        parameters, source, separate_target(Layout(generate, layers=layers, offset=replicas))
    )
    for wanted in ((8, 8), (4,)):
        sent = dict.fromkeys(range(replicas), 0)
        for number, p in enumerate(parameters):
            if p.shape == wanted:
                for move in plan.moves(number):
                    sent[move.sender] += 1
        assert max(sent.values()) - min(sent.values()) <= generate.size


# --------------------------------------------------------------------------- published facts


def test_micro_data_parallel_groups_are_the_published_ones():
    """8 ranks, p1 t4 d2, generate t_g 2 (arXiv:2409.19256, figure 8), counted from 1."""
    source = Layout(Mesh.parse("pp1.tp4.dp2"))
    target = choose_target(source, Layout(Mesh(tp=2)), [Parameter("w", (8, 8), 0)])
    groups = [[r + 1 for r in group] for group in target.tensor_groups()]
    micro = [[r + 1 for r in group] for group in target.micro_groups(source)]
    assert groups == [[1, 3], [2, 4], [5, 7], [6, 8]]
    assert micro == [[1, 2], [3, 4], [5, 6], [7, 8]]


@pytest.mark.parametrize(
    ("p", "t", "d", "p_g", "t_g"),
    [
        (1, 8, 2, 1, 4),
        (1, 4, 2, 1, 2),
        (2, 4, 1, 1, 2),
        (2, 2, 2, 1, 2),
        (1, 8, 1, 1, 1),
        (4, 2, 1, 1, 1),
    ],
)
def test_the_formulae_are_what_boxes_count(p, t, d, p_g, t_g):
    """Where everything divides and is split, HybridFlow's formula is our lower bound."""
    layers = 8
    parameters = [
        Parameter(f"{i}.{n}", (64, 64), n % 2, i) for i in range(layers) for n in range(4)
    ]
    source = Layout(Mesh(pp=p, tp=t, dp=d), layers=layers)
    ways, counted, _ = compare(parameters, source, Layout(Mesh(pp=p_g, tp=t_g), layers), 1)
    total = sum(q.numel for q in parameters)
    by_name = {way.way: way for way in ways}
    assert set(counted.received.values()) == {round(by_name["HybridFlow"].received)}
    assert by_name["bestiary"].peak == by_name["HybridFlow"].peak == total / (p_g * t_g)
    assert by_name["bestiary"].redundant == 0
    # By hand: p1 t8 d2 to t_g 4 receives (8 - 4)/(4·8) = 1/8 of the weights.
    if (p, t, d, p_g, t_g) == (1, 8, 2, 1, 4):
        assert by_name["HybridFlow"].received == total / 8
    assert by_name["DS-Chat"].received == (t * p * d - 1) / (t * p * d) * total


def test_the_formulae_by_hand():
    ds, v, hf = formulas(16.0, p=1, t=8, d=2, p_g=1, t_g=4)
    assert (ds.received, ds.peak, ds.redundant) == (15.0, 16.0, 1.0)
    assert (v.received, v.peak, v.redundant) == (14.0, 16.0, 2.0)
    assert (hf.received, hf.peak, hf.redundant) == (2.0, 4.0, 0.0)


def test_the_formulae_are_left_out_where_they_do_not_hold():
    parameters = [Parameter("w", (16, 16), 0)]
    ways, _, _ = compare(parameters, Layout(Mesh(fsdp=8)), Layout(Mesh(tp=2)), 1)
    assert [way.way for way in ways] == ["DS-Chat", "bestiary"]
    ways, counted, _ = compare(parameters, Layout(Mesh(tp=2, dp=4)), Layout(Mesh(tp=8)), 1)
    assert [way.way for way in ways] == ["DS-Chat", "HybridFlow-V", "bestiary"]
    assert set(counted.received.values()) == {0}  # eighths of what each has already


@pytest.mark.parametrize(
    ("train", "generate"),
    [("pp4.tp8.dp32", "tp4"), ("fsdp128.tp8", "tp1"), ("pp4.fsdp32.tp8", "pp2.tp4")],
)
def test_seventy_billion_on_a_thousand_ranks_plans_in_seconds(train, generate):
    """On paper for all ranks, and every move of one rank."""
    parameters = parameters_of(MODELS["llama-2-70b"])
    began = time.process_time()
    source = Layout(Mesh.parse(train), layers=80)
    ways, counted, target = compare(parameters, source, Layout(Mesh.parse(generate), layers=80))
    plan = plan_reshard(parameters, source, target)
    rank = 777
    got = sum(
        move.numel
        for number in range(len(parameters))
        for move in plan.moves(number, rank)
        if move.receiver == rank != move.sender
    )
    assert time.process_time() - began < 10.0
    assert len(counted.received) == 1024
    assert got * 2 == counted.received[rank] > 0
    assert ways[-1].received <= 1.0001 * ways[0].received  # norms are not cut by every dim


# --------------------------------------------------------------------------- details


@given(st.integers(0, 40), st.integers(1, 9))
@laws
def test_chunks_are_those_of_torch(n, parts):
    found = [chunk(n, parts, i) for i in range(parts)]
    sizes = [b - a for a, b in found]
    theirs = [len(c) for c in torch.arange(n).chunk(parts)] if n else []
    assert sizes == theirs + [0] * (parts - len(theirs))
    assert found[0][0] == 0
    assert all(a[1] == b[0] for a, b in itertools.pairwise(found))


def test_heads_are_never_cut_and_few_heads_are_shared():
    heads = Parameter("q", (12, 5), 0, blocks=3)
    layout = Layout(Mesh(tp=2))
    assert layout.shard(heads, 0) == ((0, 8), (0, 5))
    assert layout.shard(heads, 1) == ((8, 12), (0, 5))
    shared = Layout(Mesh(tp=4))
    few = Parameter("k", (8, 5), 0, blocks=2, queries=4)
    assert [shared.shard(few, i)[0] for i in range(4)] == [(0, 4), (0, 4), (4, 8), (4, 8)]


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 9))
@laws
def test_a_rank_has_the_key_value_heads_of_its_query_heads(kv, each, parts):
    queries, layout = kv * each, Layout(Mesh(tp=parts))
    q = Parameter("q", (2 * queries, 3), 0, blocks=queries)
    k = Parameter("k", (2 * kv, 3), 0, blocks=kv, queries=queries)
    for index in range(parts):
        mine, have = layout.shard(q, index), layout.shard(k, index)
        heads = set() if mine is None else set(range(mine[0][0] // 2, mine[0][1] // 2))
        found = set() if have is None else set(range(have[0][0] // 2, have[0][1] // 2))
        assert found == {h // each for h in heads}


def test_a_tied_embedding_is_on_the_first_and_the_last_stage():
    p = Parameter("embed", (8, 4), 0, tied=True)
    layout = Layout(Mesh(pp=3, tp=2), layers=3)
    assert [layout.box(p, r) is not None for r in range(6)] == [
        True,
        True,
        False,
        False,
        True,
        True,
    ]
    assert Layout(Mesh(tp=2)).stages(p) == (0,)
    # Five layers on four stages leave the last stage without a layer; it has the head all the same.
    few = Layout(Mesh(pp=4), layers=5)
    assert [few.stages(Parameter("w", (1,), layer=i)) for i in (-1, 0, 4, 5)] == [
        (0,), (0,), (2,), (3,)
    ]  # fmt: skip


def test_adapters_are_parameters_cut_like_their_matrix():
    """Cut by rows, B is cut; by columns, A is: each rank's product is its part of the sum."""
    generator = torch.Generator().manual_seed(0)
    down, up = (torch.randn(shape, generator=generator) for shape in ((2, 6), (8, 2)))
    layout = Layout(Mesh(tp=2))
    by_rows = Parameter("A", (2, 6)), Parameter("B", (8, 2), 0, blocks=4)
    by_columns = Parameter("A", (2, 6), 1, blocks=2), Parameter("B", (8, 2))
    for (first, second), matrix in (
        (by_rows, Parameter("w", (8, 6), 0, blocks=4)),
        (by_columns, Parameter("w", (8, 6), 1, blocks=2)),
    ):
        for tp in range(2):
            mine = cut(up, layout.shard(second, tp)) @ cut(down, layout.shard(first, tp))
            torch.testing.assert_close(mine, cut(up @ down, layout.shard(matrix, tp)))


@given(st.data())
@laws
def test_contiguous_is_what_torch_says(data):
    shape = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    part = []
    for n in shape:
        start = data.draw(st.integers(0, n - 1))
        part.append((start, data.draw(st.integers(start + 1, n))))
    view = torch.zeros(shape)[tuple(slice(a, b) for a, b in part)]
    assert contiguous(tuple(part), tuple((0, n) for n in shape)) == view.is_contiguous()


def test_the_plan_says_how_each_shard_comes_about():
    parameters = [
        Parameter("rows", (8, 4), 0), Parameter("columns", (4, 8), 1), Parameter("norm", (4,))
    ]  # fmt: skip
    source = Layout(Mesh(fsdp=2, tp=2))
    plan = plan_reshard(parameters, source, choose_target(source, Layout(Mesh(tp=2)), parameters))
    assert plan.handling(0) == {"rows": "direct", "columns": "direct", "norm": "direct"}
    plan = plan_reshard(parameters, source, choose_target(source, Layout(Mesh()), parameters))
    assert plan.handling(0) == {"rows": "direct", "columns": "buffer", "norm": "direct"}
    source = Layout(Mesh(tp=2))
    plan = plan_reshard(parameters, source, choose_target(source, Layout(Mesh(tp=2)), parameters))
    assert set(plan.handling(1).values()) == {"in place"}


def test_cells_lie_inside_or_outside_of_every_box():
    found = cells(((0, 4), (0, 6)), [((1, 9), (0, 3)), ((0, 2), (2, 6))])
    assert sum(volume(c) for c in found) == 24
    assert sorted({c[0] for c in found}) == [(0, 1), (1, 2), (2, 4)]
    assert sorted({c[1] for c in found}) == [(0, 2), (2, 3), (3, 6)]


@pytest.mark.parametrize(
    ("text", "message"),
    [("tp8.xx2", "'xx2' is not a dim"), ("tp2.tp4", "tp twice"), ("tp0", "tp=0"), ("tp", "'tp'")],
)
def test_a_wrong_layout_says_what_is_wanted(text, message):
    with pytest.raises(PlacementError, match=message):
        Mesh.parse(text)


def test_words_in_any_order():
    assert Mesh.parse("dp16.pp2.tp8") == Mesh(pp=2, dp=16, tp=8)
    assert str(Mesh.parse("tp4.pp2")) == "pp2.tp4"
    assert Mesh(pp=2, tp=2).coordinates(3) == {"pp": 1, "dp": 0, "fsdp": 0, "tp": 1}


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("llama-2-7b", 6.738), ("llama-2-13b", 13.016), ("llama-2-70b", 68.977),
        ("codellama-34b", 33.744), ("llama-3-8b", 8.030), ("llama-3-70b", 70.554),
        ("qwen2.5-0.5b", 0.494), ("qwen2.5-7b", 7.616), ("gpt2", 0.124), ("gpt2-xl", 1.558),
    ],
)  # fmt: skip
def test_parameters_add_up_to_the_published_sizes(name, billions):
    total = sum(p.numel for p in parameters_of(MODELS[name])) / 1e9
    assert total == pytest.approx(billions, abs=6e-4)


@pytest.mark.parametrize("arch", ["llama", "qwen2", "gpt2"])
def test_a_folder_has_the_parameters_of_its_model(arch, tmp_path):
    from transformers import AutoModelForCausalLM

    from bestiary.models.tiny import TinyOptions, build_tiny

    shape = TinyOptions(arch=arch, hidden=32, layers=2, heads=4, tied=arch == "gpt2")
    build_tiny(tmp_path, shape)
    found = sum(p.numel for p in parameters_of(find_shape(str(tmp_path))))
    wanted = sum(p.numel() for p in AutoModelForCausalLM.from_pretrained(tmp_path).parameters())
    assert found == wanted


def test_an_unknown_model_names_the_nearest():
    with pytest.raises(ModelError, match="did you mean 'llama-2-70b'"):
        find_shape("lama-2-70b")
    with pytest.raises(ModelError, match="lacks a size"):
        shape_of({"model_type": "llama"}, "config.json")
