import numpy as np
import pytest

from bestiary.errors import EngineError
from bestiary.protocols import Sampling


def bits(completions):
    return [(c.ids.tobytes(), c.logprobs.tobytes(), c.logprobs_full.tobytes()) for c in completions]


@pytest.mark.parametrize("kind", ["llama", "qwen3", "gpt2", "gpt_neox"])
def test_bit_identical_alone_in_a_crowd_and_in_two_engines(tools, start, kind):
    model = tools.build(kind)
    options = {"slots": 6, "kv_tokens": 6 * 40, "deterministic": True}
    engine = start(model, **options)
    sampling = (Sampling(n=4, max_tokens=12, top_p=0.9), Sampling(greedy=True, max_tokens=7))
    # The generic path decodes one row at a time then, so a smaller crowd has to do.
    prompts = tools.prompts_of((5, 2, 11, 7, 3, 20, 1)[: 3 if kind == "gpt_neox" else 7])
    requests = [tools.request(p, *sampling, uid=str(i)) for i, p in enumerate(prompts)]
    crowd = engine.generate(requests)
    backwards = engine.generate(requests[::-1])[::-1]
    other = start(model, **options)
    for i, request in enumerate(requests):
        alone = bits(engine.generate([request])[0])
        assert alone == bits(crowd[i])
        assert alone == bits(backwards[i])
        assert alone == bits(other.generate([request])[0])


def test_shapes_are_constant(tools, start):
    engine = start(tools.build("llama"), slots=5, kv_tokens=5 * 32, deterministic=True)
    shapes = set()
    cache = engine._decoder.cache
    plan = cache.plan

    def seen(n):
        made = plan(n)
        shapes.add((made.n, made.width, tuple(made.bias.shape)))
        return made

    cache.plan = seen
    engine.generate([tools.request([4, 5], Sampling(n=2, max_tokens=3))])
    engine.generate([tools.request(np.arange(3, 15), Sampling(n=9, max_tokens=20))])
    assert shapes == {(5, 32, (10, 1, 32))}


def test_a_sample_that_does_not_fit_its_slot_is_refused(tools, start):
    engine = start(tools.build("llama"), slots=5, kv_tokens=100, deterministic=True)
    with pytest.raises(EngineError, match=r"may take 27 tokens.*room for 20"):
        engine.generate([tools.request([4, 5], Sampling(max_tokens=25))])
