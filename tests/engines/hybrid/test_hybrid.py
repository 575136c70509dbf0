"""The way between training and generation: versions, arrival of weights, and what is freed."""

import numpy as np
import pytest
import torch

from bestiary.engines.engine_api import ModelSpec, Ranks, Request
from bestiary.engines.fsdp.engine import FSDPEngine
from bestiary.engines.fsdp.options import FSDPOptions
from bestiary.engines.hybrid.engine import HybridEngine
from bestiary.engines.local.engine import LocalEngine
from bestiary.engines.local.options import LocalOptions
from bestiary.errors import EngineError
from bestiary.models.tiny import TinyOptions, build_tiny
from bestiary.protocols import Sampling
from bestiary.testing.ranks import run_ranks

GREEDY = (Sampling(n=1, greedy=True, max_tokens=6),)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    shape = TinyOptions(arch="llama", hidden=32, layers=2, heads=4, tied=True, positions=64)
    return str(build_tiny(tmp_path_factory.mktemp("tiny"), shape))


def engines(folder, rank=0, world=1, policy="keep", dtype="fp32", **options):
    spec = ModelSpec(path=folder, dtype=dtype)
    ranks = Ranks(rank, world)
    train = FSDPEngine(FSDPOptions(lr=0.05, **options), spec, ranks)
    hybrid = HybridEngine(train, lambda: LocalEngine(LocalOptions(), spec, ranks), policy=policy)
    return train, hybrid


def shift(train, seed):
    """Change every weight of the trainer, as an optimizer step does."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in train.layout.weights:
            weight.add_(0.3 * torch.randn(weight.shape, generator=generator))
    train.layout.publish()
    train.version += 1


def answers(engine):
    request = Request(np.array([5, 9, 30]), GREEDY, [[1]])
    ((done,),) = engine.generate([request])
    return done


def expected(train):
    """The greedy continuation and its log-probabilities from the trainer's own module."""
    ids = torch.tensor([[5, 9, 30]])
    found, logprobs = [], []
    with torch.no_grad():
        for _ in range(6):
            row = train.net.lm(ids).logits[0, -1].float().log_softmax(-1)
            token = int(row.argmax())
            found.append(token)
            logprobs.append(float(row[token]))
            ids = torch.cat([ids, torch.tensor([[token]])], dim=1)
            if token == 1:
                break
    return found, logprobs


@pytest.mark.parametrize("policy", ["keep", "offload"])
@pytest.mark.parametrize("activation_checkpointing", [False, True])
@pytest.mark.parametrize("packing", ["packed", "padded"])
def test_weights_arrive_under_every_flag(folder, policy, activation_checkpointing, packing):
    train, hybrid = engines(
        folder, policy=policy, packing=packing, activation_checkpointing=activation_checkpointing
    )
    seen = set()
    for step in range(3):
        if step:
            shift(train, step)
        with hybrid.generation() as engine:
            done = answers(engine)
        ids, logprobs = expected(train)
        assert done.version == train.version == step
        assert done.ids.tolist()[: len(ids)] == ids[: len(done.ids)]
        np.testing.assert_allclose(done.logprobs, logprobs[: len(done.ids)], atol=1e-4)
        seen.add(tuple(np.round(done.logprobs, 3).tolist()))
    assert len(seen) == 3  # three policies, three answers


def test_weights_arrive_from_two_sharded_ranks_in_both_dtypes(folder):
    def run(rank, world, shard, dtype):
        train, hybrid = engines(folder, rank, world, shard=shard, dtype=dtype)
        found = []
        for step in range(2):
            if step:
                with torch.no_grad():
                    for weight in train.layout.weights:
                        weight.mul_(1.5)
                train.layout.publish()
                train.version += 1
            with hybrid.generation() as engine:
                done = answers(engine)
            found.append((done.version, done.ids.tolist(), done.logprobs.tolist()))
        sent = [t.moved_bytes for t in hybrid.take_transitions()]
        return found, sent

    for dtype in ("fp32", "bf16"):
        (alone,) = run_ranks(1, run, "none", dtype)
        for shard in ("none", "full"):
            for found, sent in run_ranks(2, run, shard, dtype):
                assert sent == alone[1]
                for (v, ids, logprobs), (v2, ids2, logprobs2) in zip(found, alone[0], strict=True):
                    assert (v, ids) == (v2, ids2)
                    np.testing.assert_allclose(logprobs, logprobs2, atol=1e-4)
        assert alone[0][0][2] != alone[0][1][2]


def test_nothing_is_sent_when_nothing_has_changed(folder):
    train, hybrid = engines(folder)
    for _ in range(2):
        with hybrid.generation() as engine:
            answers(engine)
    shift(train, 1)
    with hybrid.generation():
        pass
    sent = [t.moved_bytes for t in hybrid.take_transitions()]
    weights = sum(t.numel() * 4 for b in train.export() for t in b.values())
    assert sent == [0, 0, weights] or sent == [weights, 0, weights]
    assert hybrid.take_transitions() == []


def test_a_checkpoint_of_the_same_version_is_sent_again(folder, tmp_path):
    train, hybrid = engines(folder)
    shift(train, 1)
    train.save(tmp_path)
    with hybrid.generation() as engine:
        first = answers(engine)
    other, _ = engines(folder)
    other.load(tmp_path)
    shift(train, 2)
    train.version = 1
    hybrid.forget_weights()
    with hybrid.generation() as engine:
        second = answers(engine)
    assert second.version == 1
    _, logprobs = expected(train)
    np.testing.assert_allclose(second.logprobs, logprobs[: len(second.ids)], atol=1e-4)
    assert first.logprobs.tolist() != second.logprobs.tolist()


class Broken:
    """Wraps a rollout engine and fails on demand."""

    def __init__(self, engine):
        self.engine, self.fail, self.version_lie = engine, "", None

    def __getattr__(self, name):
        if name == self.fail:
            raise OSError(f"{name} was cut off")
        return getattr(self.engine, name)

    @property
    def version(self):
        return self.engine.version if self.version_lie is None else self.version_lie


@pytest.mark.parametrize("fail", ["prepare", "write", "commit"])
def test_a_transfer_that_is_cut_off_leaves_no_mixture(folder, fail):
    train, _ = engines(folder)
    spec = ModelSpec(path=folder)
    broken = Broken(LocalEngine(LocalOptions(), spec, Ranks()))
    hybrid = HybridEngine(train, lambda: broken)
    with hybrid.generation() as engine:
        answers(engine)
    shift(train, 1)
    broken.fail = fail
    with pytest.raises(OSError, match="cut off"), hybrid.generation():
        pass
    assert not hybrid.generating
    if fail != "prepare":
        with pytest.raises(EngineError):  # old and new weights, or unproven ones
            answers(broken.engine)
    broken.fail = ""
    with hybrid.generation() as engine:
        done = answers(engine)
    _, logprobs = expected(train)
    assert done.version == 1
    np.testing.assert_allclose(done.logprobs, logprobs[: len(done.ids)], atol=1e-4)


def test_an_engine_that_says_another_version_is_refused(folder):
    train, _ = engines(folder)
    broken = Broken(LocalEngine(LocalOptions(), ModelSpec(path=folder), Ranks()))
    broken.version_lie = 7
    hybrid = HybridEngine(train, lambda: broken)
    with pytest.raises(EngineError, match="says version 7 after it was sent version 0"):
        hybrid.generation().__enter__()


def test_updates_and_a_second_block_are_refused_inside(folder):
    _, hybrid = engines(folder)
    with hybrid.generation():
        with pytest.raises(EngineError, match="inside generation"):
            hybrid.require_training("update")
        with pytest.raises(EngineError, match="open already"):
            hybrid.generation().__enter__()
        with pytest.raises(EngineError, match="loading weights"):
            hybrid.forget_weights()
    hybrid.require_training("update")


def policy_gradient_parts(train):
    """One update on two rows with the installed policy loss."""
    from bestiary.batch import Ragged, RowBlock
    from bestiary.engines.engine_api import TermJob, UpdatePart
    from bestiary.protocols import ComponentRef

    rows = RowBlock(
        {
            "prompt_ids": Ragged.from_rows([[5, 9], [7, 8, 9]], np.int64),
            "response_ids": Ragged.from_rows([[4, 6, 1], [3, 1]], np.int64),
            "response_mask": Ragged.from_rows([[True] * 3, [True] * 2], bool),
        },
        {"advantages": np.array([1.0, -0.5])},
    )
    term = TermJob(ComponentRef("loss", "reinforce"), np.array([0.2, 0.2]))
    return [UpdatePart(rows=rows, micro=((0, 1),), terms=[term])]


def test_offload_frees_gradients_and_kv_and_training_goes_on_to_the_bit(folder):
    found = []
    for policy in ("keep", "offload"):
        train, hybrid = engines(folder, policy=policy)
        for _ in range(3):
            with hybrid.generation() as engine:
                answers(engine)
                if policy == "offload":
                    assert train.layout.grads[0].untyped_storage().nbytes() == 0
            train.update(policy_gradient_parts(train))
        freed = [t.residency for t in hybrid.take_transitions() if t.residency]
        found.append([w.clone() for w in train.layout.weights])
        if policy == "keep":
            assert freed == []
            continue
        size = train.layout.grads[0].numel() * 4
        assert freed[0]["train"]["freed_bytes"] == size
        assert any(f.get("rollout", {}).get("freed_bytes", 0) > 0 for f in freed)
    for a, b in zip(*found, strict=True):
        assert torch.equal(a, b)


def test_masters_do_not_leave_the_device(folder):
    from bestiary.engines.engine_api import Residency

    train, _ = engines(folder)
    with pytest.raises(EngineError, match="masters"):
        train.residency(Residency(weights="freed"))
