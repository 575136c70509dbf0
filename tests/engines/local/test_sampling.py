import numpy as np
import pytest
import torch
from transformers import LogitsProcessorList, MinPLogitsWarper
from transformers import TopKLogitsWarper as TopK
from transformers import TopPLogitsWarper as TopP

from bestiary.engines.local import sampling
from bestiary.engines.local.sampling import Rules, inverse_cdf, truncated
from bestiary.protocols import Sampling


def warped(logits, top_k=0, top_p=1.0, min_p=0.0):
    """What transformers' own warpers leave, in the order of its generate."""
    warpers = LogitsProcessorList()
    if top_k:
        warpers.append(TopK(top_k))
    if top_p < 1.0:
        warpers.append(TopP(top_p))
    if min_p > 0.0:
        warpers.append(MinPLogitsWarper(min_p))
    return warpers(None, logits.clone()) if warpers else logits


SETTINGS = [
    {"top_k": 1},
    {"top_k": 5},
    {"top_k": 500},
    {"top_p": 0.1},
    {"top_p": 0.9},
    {"top_p": 0.999},
    {"min_p": 0.05},
    {"min_p": 0.5},
    {"top_k": 20, "top_p": 0.8},
    {"top_k": 20, "min_p": 0.1},
    {"top_p": 0.7, "min_p": 0.2},
    {"top_k": 9, "top_p": 0.95, "min_p": 0.02},
]


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
@pytest.mark.parametrize("vocab", [101, 5000])
def test_filters_equal_those_of_transformers(setting, vocab):
    logits = torch.randn(16, vocab, generator=torch.Generator().manual_seed(1)) * 3
    n = len(logits)
    ours = truncated(
        logits,
        torch.full((n,), setting.get("top_k", 0)),
        torch.full((n,), setting.get("top_p", 1.0)),
        torch.full((n,), setting.get("min_p", 0.0)),
    )
    theirs = warped(logits, **setting)
    other = torch.isfinite(ours) != torch.isfinite(theirs)
    # Their sums run from the least probable token, ours from the most probable one: a token may
    # differ only where the mass before it is the limit but for float32 rounding.
    probs, order = (
        warped(logits, setting.get("top_k", 0)).double().softmax(-1).sort(descending=True)
    )
    before = torch.empty_like(probs).scatter_(1, order, probs.cumsum(-1) - probs)
    near = (before - setting.get("top_p", 1.0)).abs() < 2e-6
    assert not (other & ~near).any()
    assert other.sum() <= 2
    assert torch.equal(ours[~other], theirs[~other])


def test_large_vocabulary_falls_back_to_a_whole_sort(monkeypatch):
    """Flat rows need more candidates than are sorted first; steep ones of the same call do not."""
    logits = torch.randn(8, 3000, generator=torch.Generator().manual_seed(2))
    logits[::2] *= 9
    p = torch.full((8,), 0.9)
    zero = torch.zeros(8)
    assert torch.equal(truncated(logits, zero.long(), p, zero), warped(logits, top_p=0.9))
    monkeypatch.setattr(sampling, "_CANDIDATES", 3000)
    assert torch.equal(truncated(logits, zero.long(), p, zero), warped(logits, top_p=0.9))


def test_equals_of_the_kth_token_stay():
    logits = torch.tensor([[1.0, 3.0, 2.0, 2.0, 0.0]])
    kept = truncated(logits, torch.tensor([2]), torch.ones(1), torch.zeros(1))
    assert torch.isfinite(kept).tolist() == [[False, True, True, True, False]]


def test_rows_of_one_batch_follow_their_own_sampling():
    logits = torch.randn(5, 50, generator=torch.Generator().manual_seed(3)) * 2
    kinds = [
        Sampling(max_tokens=1),
        Sampling(greedy=True, max_tokens=1),
        Sampling(temperature=0.5, top_k=3),
        Sampling(temperature=2.0, top_p=0.5),
        Sampling(min_p=0.3),
    ]
    u = np.full(5, 0.6)
    together = Rules(kinds, torch.device("cpu")).draw(logits.clone(), np.arange(5), u)
    for i, kind in enumerate(kinds):
        alone = Rules([kind], torch.device("cpu")).draw(
            logits[i : i + 1].clone(), np.zeros(1, dtype=np.int64), u[:1]
        )
        assert together.tokens[i] == alone.tokens[0]
        assert together.logprobs[i] == pytest.approx(alone.logprobs[0].item(), abs=1e-6)
        tempered = logits[i] / kind.temperature
        full = torch.log_softmax(tempered, -1)[alone.tokens[0]]
        kept = warped(tempered[None], kind.top_k, kind.top_p, kind.min_p)
        behaviour = torch.log_softmax(kept, -1)[0, alone.tokens[0]]
        if kind.greedy:
            behaviour = full
        assert together.logprobs_full[i] == pytest.approx(full.item(), abs=1e-6)
        assert together.logprobs[i] == pytest.approx(behaviour.item(), abs=1e-6)


def test_greedy_takes_the_lowest_id_among_equals():
    logits = torch.tensor([[0.0, 5.0, 5.0, 1.0]])
    rules = Rules([Sampling(greedy=True)], torch.device("cpu"))
    draw = rules.draw(logits, np.zeros(1, dtype=np.int64), np.array([0.99]))
    assert draw.tokens.tolist() == [1]


def test_inverse_cdf_by_hand():
    logprobs = torch.log(torch.tensor([[0.0, 0.25, 0.0, 0.5, 0.25, 0.0]]))
    for u, token in ((0.0, 1), (0.2499, 1), (0.25, 3), (0.7499, 3), (0.75, 4), (1 - 2**-53, 4)):
        assert inverse_cdf(logprobs, np_u(u)).tolist() == [token]


def np_u(u):
    return torch.tensor([u], dtype=torch.float64)


def test_a_removed_token_is_never_drawn():
    g = torch.Generator().manual_seed(4)
    logits = torch.randn(4000, 40, generator=g)
    kept = truncated(
        logits, torch.full((4000,), 3), torch.full((4000,), 0.9), torch.full((4000,), 0.1)
    )
    u = torch.rand(4000, dtype=torch.float64, generator=g)
    u[:2000] = 1 - 2.0**-53
    tokens = inverse_cdf(torch.log_softmax(kept, -1), u)
    assert torch.isfinite(kept.gather(1, tokens[:, None])).all()
