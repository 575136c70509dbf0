import dataclasses

import numpy as np
import pytest
import torch

from bestiary.engines.local.decoder import FastDecoder
from bestiary.protocols import Sampling


def same(a, b, atol=1e-5):
    assert len(a) == len(b)
    for x, y in zip(a, b, strict=True):
        assert np.array_equal(x.ids, y.ids)
        assert x.truncated == y.truncated
        np.testing.assert_allclose(x.logprobs, y.logprobs, atol=atol)


def asks(tools, count=7, n=3, most=12):
    prompts = tools.prompts_of([(i * 5) % 11 + 1 for i in range(count)])
    kinds = (Sampling(n=n, max_tokens=most), Sampling(greedy=True, max_tokens=4))
    return [tools.request(p, *kinds, uid=str(i)) for i, p in enumerate(prompts)]


@pytest.mark.parametrize("kind", ["llama", "gpt2", "gpt_neox"])
@pytest.mark.parametrize("slots", [1, 4, 7])
def test_refilled_slots_give_the_tokens_of_one_by_one(tools, start, kind, slots):
    engine = start(tools.build(kind), slots=slots)
    requests = asks(tools)
    crowd = engine.generate(requests)
    for request, completions in zip(requests, crowd, strict=True):
        same(engine.generate([request])[0], completions)


def test_a_token_budget_limits_the_rows(tools, start):
    engine = start(tools.build("llama"), slots=64, kv_tokens=100)
    rows = []
    step = engine._decoder.step
    engine._decoder.step = lambda tokens: rows.append(len(tokens)) or step(tokens)
    requests = asks(tools)
    limited = engine.generate(requests)
    assert max(rows) == 100 // (11 + 12)
    for a, b in zip(limited, start(tools.build("llama")).generate(requests), strict=True):
        same(a, b)


def test_equal_prompts_are_read_once(tools, start, monkeypatch):
    engine = start(tools.build("llama"), slots=4)
    read = []
    prefill = FastDecoder.prefill

    def counted(self, prompts):
        read.extend(tuple(p) for p in prompts)
        return prefill(self, prompts)

    monkeypatch.setattr(FastDecoder, "prefill", counted)
    prompts = [(4, 5, 6), (7, 8), (4, 5, 6), (9,), (7, 8)]
    kind = Sampling(n=5, max_tokens=6)
    out = engine.generate([tools.request(p, kind, uid=str(i)) for i, p in enumerate(prompts)])
    assert sorted(read) == sorted(set(prompts))
    assert [len(completions) for completions in out] == [5] * 5


def expected_rows(lengths, slots):
    """Rows of each step when a row is given on in the step after its response's last token."""
    waiting, running, rows = list(lengths), [], []
    while waiting or running:
        if running:
            rows.append(len(running))
        free = slots - len(running)
        running += waiting[:free]
        waiting = waiting[free:]
        running = [left - 1 for left in running if left > 1]
    return rows


def test_rows_stay_dense_and_finished_ones_are_replaced_at_once(tools, start):
    engine = start(tools.build("llama"), slots=6)
    rows = []
    step = engine._decoder.step
    engine._decoder.step = lambda tokens: rows.append(len(tokens)) or step(tokens)
    out = engine.generate([tools.request([5, 6], Sampling(n=60, max_tokens=25))])[0]
    lengths = [len(c.ids) for c in out]
    assert len(set(lengths)) > 5
    assert rows == expected_rows(lengths, slots=6)


def test_samplings_of_one_request_come_in_order(tools, start):
    engine = start(tools.build("llama"))
    kinds = (
        Sampling(n=2, max_tokens=3),
        Sampling(greedy=True, max_tokens=5),
        Sampling(n=3, max_tokens=4, top_k=1),
    )
    out = engine.generate([tools.request([8, 9], *kinds)])[0]
    assert len(out) == 6
    assert [len(c.ids) <= m for c, m in zip(out, (3, 3, 5, 4, 4, 4), strict=True)] == [True] * 6
    greedy = out[2].ids[:4]
    for c in out[3:]:  # one candidate is the greedy choice
        assert np.array_equal(c.ids, greedy[: len(c.ids)])
        np.testing.assert_allclose(c.logprobs, 0.0, atol=1e-6)
        assert (c.logprobs_full < 0).any()


def test_no_requests_and_requests_without_samplings(tools, start):
    engine = start(tools.build("llama"))
    assert engine.generate([]) == []
    assert engine.generate([tools.request([3])]) == [[]]


def test_sampled_tokens_follow_the_softmax(tools, start):
    """Chi-square over many streams, at a temperature, on the first and second token."""
    model = tools.build("odd_llama", gain=2.0)
    engine = start(model)
    n = 20_000
    kind = Sampling(n=n, max_tokens=2, temperature=1.3)
    prompt = np.array([5, 6, 7])
    out = engine.generate([tools.request(prompt, kind)])[0]
    with torch.no_grad():
        first = torch.softmax(model(torch.from_numpy(prompt)[None]).logits[0, -1] / 1.3, -1)
        every = torch.arange(53)[:, None]
        pairs = torch.cat([torch.from_numpy(prompt).expand(53, 3), every], 1)
        second = torch.softmax(model(pairs).logits[:, -1] / 1.3, -1)
    # Nothing is drawn after the end token.
    going_on = first.clone()
    going_on[tools.EOS] = 0
    expected = (going_on @ second) * n
    for place, want in ((0, first * n), (1, expected)):
        drawn = np.bincount([c.ids[place] for c in out if len(c.ids) > place], minlength=53)
        enough = want.numpy() >= 5
        chi2 = ((drawn - want.numpy()) ** 2 / want.numpy())[enough].sum()
        degrees = enough.sum() - 1
        assert degrees > 10
        assert chi2 < degrees + 4.5 * np.sqrt(2 * degrees)


def test_streams_decide_and_nothing_else(tools, start):
    engine = start(tools.build("llama"))
    kind = Sampling(n=6, max_tokens=10)
    first = engine.generate([tools.request([4, 5], kind, uid="a")])[0]
    same(first, engine.generate([tools.request([4, 5], kind, uid="a")])[0], atol=0)
    other = engine.generate([tools.request([4, 5], kind, uid="b")])[0]
    assert any(not np.array_equal(x.ids, y.ids) for x, y in zip(first, other, strict=True))
    # A sample keeps its tokens when its group grows.
    more = engine.generate([tools.request([4, 5], dataclasses.replace(kind, n=20), uid="a")])[0]
    same(first, more[:6])


def test_several_end_tokens_of_the_generation_config(tools, start):
    model = tools.build("llama")
    model.generation_config.eos_token_id = [11, 12]
    engine = start(model)
    out = engine.generate([tools.request([4, 5], Sampling(n=200, max_tokens=40))])[0]
    last = {int(c.ids[-1]) for c in out if not c.truncated}
    assert last == {11, 12}
    assert all(not np.isin(c.ids[:-1], [11, 12]).any() for c in out)
    assert any(tools.EOS in c.ids for c in out)  # the model's config is overruled


def test_an_end_token_drawn_last_is_not_truncated(tools, start):
    engine = start(tools.build("llama"))
    long = engine.generate([tools.request([4, 5], Sampling(n=60, max_tokens=30))])[0]
    at, ended = next((i, c) for i, c in enumerate(long) if not c.truncated and len(c.ids) > 1)
    most = len(ended.ids)
    exact = engine.generate([tools.request([4, 5], Sampling(n=60, max_tokens=most))])[0][at]
    assert np.array_equal(exact.ids, ended.ids)
    assert not exact.truncated
    cut = engine.generate([tools.request([4, 5], Sampling(n=60, max_tokens=most - 1))])[0][at]
    assert np.array_equal(cut.ids, ended.ids[:-1])
    assert cut.truncated
