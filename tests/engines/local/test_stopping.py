import numpy as np
import pytest

from bestiary.engines.local.stopping import StopTexts
from bestiary.protocols import Sampling


@pytest.fixture
def bytes_(tools, tmp_path):
    return tools.byte_tokenizer(tmp_path)


def ids(tokenizer, text):
    return np.array(tokenizer.encode(text, add_special_tokens=False))


def first_match(stops, tokens, stop):
    """Length at which a growing response stops, looking only at candidate tokens."""
    table = stops.candidates(stop)
    for length in range(1, len(tokens) + 1):
        if table[tokens[length - 1]] and stops.found(tokens[:length], stop):
            return length
    return None


@pytest.mark.parametrize(
    ("text", "stop", "length"),
    [
        ("12\n34", ("\n",), 3),
        ("ab</a>c", ("</a>",), 6),
        ("xxab", ("b", "xx"), 2),
        ("a b c ", ("c ",), 6),
        ("schön!", ("ö",), 5),  # two bytes, the second one completes it
        ("none", ("zz",), None),
        ("aaab" + "c" * 300 + "end", ("end",), 307),
        ("a<eos>b", ("<eos>",), 2),  # special tokens have text too
    ],
)
def test_a_stop_text_ends_at_the_token_that_completes_it(bytes_, text, stop, length):
    stops = StopTexts(bytes_, len(bytes_))
    assert first_match(stops, ids(bytes_, text), stop) == length


def test_few_tokens_are_candidates(bytes_):
    table = StopTexts(bytes_, len(bytes_) + 5).candidates(("\n", "b"))
    plain = ids(bytes_, "acde 0123")
    assert not table[plain].any()
    assert table[ids(bytes_, "\nb")].all()
    assert table[-5:].all()  # ids without text are always looked at


@pytest.mark.parametrize("kind", ["llama", "gpt_neox"])
def test_responses_stop_and_keep_the_text(tools, start, kind):
    model = tools.build(kind)
    engine = start(model, tokenizer=True)
    # Random tokens below 97 are printable bytes; "e" comes up within a few of them.
    free = Sampling(n=60, max_tokens=30, temperature=3.0)
    plain = engine.generate([tools.request([40, 41], free)])[0]
    stopped = engine.generate(
        [tools.request([40, 41], Sampling(n=60, max_tokens=30, temperature=3.0, stop=("e", "qq")))]
    )[0]
    hits = 0
    mark = 3 + sorted(chr(c) for c in range(33, 127)).index("e")
    for a, b in zip(plain, stopped, strict=True):
        where = np.flatnonzero(a.ids == mark)
        if len(where):
            hits += 1
            assert np.array_equal(b.ids, a.ids[: where[0] + 1])
            assert len(b.logprobs) == len(b.ids)
            assert not b.truncated
        else:
            assert np.array_equal(a.ids, b.ids)
            assert a.truncated == b.truncated
    assert hits > 10


def test_samplings_of_one_call_have_their_own_stops(tools, start):
    engine = start(tools.build("llama"), tokenizer=True)
    kinds = (Sampling(n=30, max_tokens=20), Sampling(n=30, max_tokens=20, stop=("a", "e", "i")))
    free, stopped = np.array_split(engine.generate([tools.request([40], *kinds)])[0], 2)
    marks = [3 + sorted(chr(c) for c in range(33, 127)).index(c) for c in "aei"]
    assert any(np.isin(c.ids[:-1], marks).any() for c in free)
    assert all(not np.isin(c.ids[:-1], marks).any() for c in stopped)


def test_DATA_07_ids_are_never_made_from_text(tools, start):
    """Half a character at the limit stays the id that was drawn."""
    engine = start(tools.build("llama", vocab_size=259), tokenizer=True)
    kind = Sampling(n=50, max_tokens=5, temperature=5.0, stop=("never seen",))
    for c in engine.generate([tools.request([200], kind)])[0]:
        assert len(c.ids) == len(c.logprobs)
        want = tools.reference_logprobs(
            tools.build("llama", vocab_size=259), np.array([200]), c.ids, 5.0
        )
        np.testing.assert_allclose(c.logprobs, want, atol=1e-4)
