import numpy as np
import pytest
import torch

from bestiary.engines.checksum import Checksum
from bestiary.engines.engine_api import ModelSpec, Ranks, Request, Residency
from bestiary.engines.local.engine import LocalEngine
from bestiary.engines.local.options import LocalOptions
from bestiary.errors import EngineError
from bestiary.protocols import Sampling

KIND = Sampling(n=2, max_tokens=6)


def draw(tools, engine, kind=KIND, uid="u"):
    return engine.generate([tools.request([4, 5, 6], kind, uid=uid)])[0]


def checksum_of(pairs):
    checksum = Checksum()
    for name, tensor in pairs:
        checksum.add(name, tensor)
    return checksum.hexdigest()


def refuses_to_generate(tools, engine):
    with pytest.raises(EngineError, match="nothing can be generated"):
        draw(tools, engine)
    return True


def test_nothing_is_generated_before_the_first_commit(tools, start):
    engine = start(tools.build("llama"), weights=False)
    assert refuses_to_generate(tools, engine)


@pytest.mark.parametrize("kind", ["llama", "gpt_neox"])
def test_DIST_04_new_weights_leave_nothing_of_the_old(tools, start, kind):
    """After a commit the same prompt is read anew: results equal those of a fresh engine."""
    old, new = tools.build(kind, seed=0), tools.build(kind, seed=1)
    engine = start(old)
    before = draw(tools, engine)
    tools.commit(engine, new, version=5)
    after = draw(tools, engine)
    fresh = draw(tools, start(new))
    assert engine.version == 5
    assert [c.version for c in before + after] == [1, 1, 5, 5]
    for a, b in zip(after, fresh, strict=True):
        assert np.array_equal(a.ids, b.ids)
        assert np.array_equal(a.logprobs, b.logprobs)
        want = tools.reference_logprobs(new, np.array([4, 5, 6]), a.ids)
        np.testing.assert_allclose(a.logprobs, want, atol=1e-4)


def test_written_tensors_are_not_kept(tools, start):
    model = tools.build("llama_tied")
    engine = start(model)
    before = draw(tools, engine)
    with torch.no_grad():
        for p in model.parameters():
            p.fill_(float("nan"))
    after = draw(tools, engine)
    assert all(np.array_equal(a.logprobs, b.logprobs) for a, b in zip(before, after, strict=True))


def test_a_wrong_checksum_disables_the_engine_until_a_complete_commit(tools, start):
    model = tools.build("llama")
    engine = start(model)
    before = draw(tools, engine)
    engine.prepare(2)
    engine.write(dict(model.named_parameters()))
    with pytest.raises(EngineError, match=r"version 2: checksum .* differs"):
        engine.commit("0" * 32 + "-21")
    assert refuses_to_generate(tools, engine)
    with pytest.raises(EngineError, match="commit before prepare"):
        engine.commit(checksum_of(model.named_parameters()))
    assert engine.version == 1
    tools.commit(engine, model, version=2)
    assert [c.ids.tolist() for c in draw(tools, engine)] == [c.ids.tolist() for c in before]


def test_an_interrupted_hand_over_disables_the_engine(tools, start):
    engine = start(tools.build("llama"))
    engine.prepare(2)
    with pytest.raises(EngineError, match=r"being written \(version 2\)"):
        draw(tools, engine)


def test_a_missing_parameter_is_named(tools, start):
    pairs = dict(tools.build("llama").named_parameters())
    lost = pairs.pop("model.norm.weight")
    assert lost.shape == (32,)
    engine = start(tools.build("llama"))
    engine.prepare(2)
    engine.write(pairs)
    with pytest.raises(EngineError, match=r"1 of 21 parameters .*'model.norm.weight'"):
        engine.commit(checksum_of(pairs.items()))
    assert refuses_to_generate(tools, engine)


@pytest.mark.parametrize(
    ("bucket", "message"),
    [
        ({"model.nrom.weight": torch.ones(32)}, r"unknown parameter 'model.nrom.weight'"),
        ({"model.norm.weight": torch.ones(31)}, r"has shape \(31,\), wanted \(32,\)"),
    ],
)
def test_a_parameter_that_does_not_fit_is_refused(tools, start, bucket, message):
    model = tools.build("llama")
    engine = start(model)
    engine.prepare(2)
    with pytest.raises(EngineError, match=message):
        engine.write(bucket)
    assert refuses_to_generate(tools, engine)
    with pytest.raises(EngineError, match="write before prepare"):
        engine.write(dict(model.named_parameters()))


def test_a_parameter_written_twice_is_refused(tools, start):
    engine = start(tools.build("llama_tied"))
    embedding = {"model.embed_tokens.weight": torch.zeros(tools.VOCAB, 32)}
    engine.prepare(2)
    engine.write(embedding)
    with pytest.raises(EngineError, match="written twice"):
        engine.write({"lm_head.weight": torch.zeros(tools.VOCAB, 32)})


@pytest.mark.parametrize("size", [0, 60])
def test_a_prompt_that_cannot_be_drawn_is_refused_with_numbers(tools, start, size):
    engine = start(tools.build("llama"))
    pattern = {
        0: r"request 1 is empty \(0 tokens\)",
        60: r"request 1 has 60 prompt tokens and max_tokens=6.*64 positions",
    }
    bad = tools.request(np.full(size, 7), KIND)
    with pytest.raises(EngineError, match=pattern[size]):
        engine.generate([tools.request([4], KIND), bad])
    assert draw(tools, engine)  # a refused request leaves the engine usable


def test_ids_outside_the_vocabulary_and_missing_keys_are_refused(tools, start):
    engine = start(tools.build("llama"))
    with pytest.raises(EngineError, match=r"token id 97.*0 to 96"):
        engine.generate([tools.request([4, 97], KIND)])
    with pytest.raises(EngineError, match=r"\[1\] keys for samplings with n=\[2\]"):
        engine.generate([Request(np.array([4]), [KIND], [[1]])])


def test_a_sample_larger_than_the_kv_memory_is_refused(tools, start):
    engine = start(tools.build("llama"), kv_tokens=8)
    with pytest.raises(EngineError, match="may take 9 tokens, but there is room for 8"):
        draw(tools, engine)


@pytest.mark.parametrize("kind", ["llama", "gpt_neox"])
def test_non_finite_weights_are_reported_and_leave_no_trace(tools, start, kind):
    """NaN in KV memory would leak through masked positions into the next version."""
    model = tools.build(kind)
    engine = start(model)
    longer = Sampling(n=2, max_tokens=33)
    good = draw(tools, engine, longer)
    broken = tools.build(kind)
    with torch.no_grad():
        next(broken.parameters())[4].fill_(float("nan"))
    tools.commit(engine, broken, version=2)
    # The same layout as the call before and after, with a prompt that fills most of it.
    with pytest.raises(EngineError, match="logits of version 2 are not finite"):
        engine.generate([tools.request([4] * 30, KIND)])
    tools.commit(engine, model, version=3)
    for a, b in zip(good, draw(tools, engine, longer), strict=True):
        assert np.array_equal(a.ids, b.ids)


@pytest.mark.parametrize("kind", ["llama", "gpt_neox"])
def test_residency_frees_and_returns(tools, start, kind):
    model = tools.build(kind)
    engine = start(model)
    before = draw(tools, engine)
    held = engine.residency(Residency())
    # Norms are folded into the projections behind them; all else is held once.
    weights = sum(p.numel() for p in model.parameters() if p.dim() > 1) * 4
    assert held["weight_bytes"] >= weights
    assert held["freed_bytes"] == held["moved_bytes"] == 0
    assert (held["kv_bytes"] > 0) == (kind == "llama")  # the generic path keeps none between calls
    asleep = engine.residency(Residency(weights="host", kv="freed"))
    assert asleep["freed_bytes"] == held["kv_bytes"]
    assert asleep["kv_bytes"] == 0
    with pytest.raises(EngineError, match="weights are on the host"):
        draw(tools, engine)
    engine.residency(Residency())
    again = draw(tools, engine)
    assert all(np.array_equal(a.ids, b.ids) for a, b in zip(before, again, strict=True))
    gone = engine.residency(Residency(weights="freed", kv="freed"))
    assert gone["freed_bytes"] >= weights
    assert gone["weight_bytes"] == gone["kv_bytes"] == 0
    engine.residency(Residency())
    assert refuses_to_generate(tools, engine)
    tools.commit(engine, model, version=2)
    last = draw(tools, engine)
    assert all(np.array_equal(a.ids, b.ids) for a, b in zip(before, last, strict=True))


def test_building_an_engine_leaves_the_random_state_alone(tools, start):
    model = tools.build("gpt_neox")
    torch.manual_seed(3)
    want = torch.rand(1)
    torch.manual_seed(3)
    start(model)
    assert torch.equal(torch.rand(1), want)


def test_a_value_head_draws_nothing(tmp_path):
    with pytest.raises(EngineError, match="head='value'"):
        LocalEngine(LocalOptions(), ModelSpec(path=str(tmp_path), head="value"), Ranks())


@pytest.mark.parametrize(
    "options", [{"slots": 0}, {"kv_tokens": 0}, {"deterministic": True, "kv_tokens": 600}]
)
def test_options_are_checked(options):
    with pytest.raises(ValueError, match="local engine"):
        LocalOptions(**options)
