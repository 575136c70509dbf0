"""Suites of rollout and training engines, with a tiny model on the CPU."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pytest

from bestiary.batch import Ragged, RowBlock
from bestiary.engines.checksum import Checksum
from bestiary.engines.engine_api import (
    Completion,
    ModelSpec,
    Ranks,
    Request,
    RolloutEngine,
    TermJob,
    TrainEngine,
    UpdatePart,
)
from bestiary.errors import BestiaryError
from bestiary.protocols import ComponentRef, Sampling
from bestiary.testing.data import tiny_model
from bestiary.testing.suite import Suite

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

_PROMPTS = ((5, 6, 7), (8, 9), (5, 6, 7, 8, 9, 10))


def _weights(folder: Path) -> "dict[str, Tensor]":
    from safetensors.torch import load_file

    return load_file(str(folder / "model.safetensors"))


class RolloutEngineSuite(Suite):
    """The contract of an engine that draws responses."""

    kind = "rollout_engine"
    tolerance: ClassVar[float] = 2e-4
    """Nats by which its log-probabilities may differ from a plain forward pass in float32."""

    def make(self, folder: Path, seed: int = 0) -> "tuple[RolloutEngine, dict[str, Tensor]]":
        """(an engine without weights, the weights of its model)."""
        path = tiny_model(folder / f"model{seed}", seed=seed)
        engine: RolloutEngine = self.build(ModelSpec(path=str(path)), Ranks())
        return engine, _weights(path)

    @staticmethod
    def send(engine: RolloutEngine, weights: "Mapping[str, Tensor]", version: int = 1) -> None:
        """One complete weight transfer."""
        checksum = Checksum()
        engine.prepare(version)
        for name, tensor in weights.items():
            checksum.add(name, tensor)
            engine.write({name: tensor})
        engine.commit(checksum.hexdigest())

    @staticmethod
    def draw(engine: RolloutEngine, *samplings: Sampling) -> list[list[Completion]]:
        """Completions of a few prompts with fixed random streams."""
        requests = [
            Request(
                np.array(ids, dtype=np.int64),
                samplings,
                [[1000 * p + 100 * s + i for i in range(k.n)] for s, k in enumerate(samplings)],
            )
            for p, ids in enumerate(_PROMPTS)
        ]
        return engine.generate(requests)

    def test_it_draws_what_was_asked_for(self, tmp_path: Path) -> None:
        """Every sampling's responses in order, within the limit, with their log-probabilities."""
        engine, weights = self.make(tmp_path)
        self.send(engine, weights, version=3)
        assert engine.version == 3
        answers = self.draw(
            engine, Sampling(n=3, max_tokens=5), Sampling(greedy=True, max_tokens=5, tag="greedy")
        )
        assert [len(a) for a in answers] == [4] * len(_PROMPTS)
        for completion in (c for answer in answers for c in answer):
            assert 1 <= len(completion.ids) <= 5
            assert len(completion.logprobs) == len(completion.logprobs_full) == len(completion.ids)
            assert (completion.logprobs <= 1e-6).all()
            assert completion.version == 3

    def test_its_logprobs_are_those_of_the_model(self, tmp_path: Path) -> None:
        """A plain forward pass says the same."""
        import torch

        from bestiary.models.loading import load_causal_lm

        engine, weights = self.make(tmp_path)
        self.send(engine, weights)
        model = load_causal_lm(tmp_path / "model0")
        answers = self.draw(engine, Sampling(n=2, max_tokens=6))
        for ids, answer in zip(_PROMPTS, answers, strict=True):
            for c in answer:
                whole = torch.tensor([[*ids, *c.ids.tolist()]])
                with torch.no_grad():
                    table = torch.log_softmax(model(whole).logits[0], -1)
                at = range(len(ids) - 1, len(ids) - 1 + len(c.ids))
                wanted = [float(table[t, i]) for t, i in zip(at, c.ids.tolist(), strict=True)]
                assert c.logprobs == pytest.approx(wanted, abs=self.tolerance)
                assert c.logprobs_full == pytest.approx(wanted, abs=self.tolerance)

    def test_greedy_is_greedy_and_streams_repeat(self, tmp_path: Path) -> None:
        """The same keys give the same tokens; greedy needs none."""
        engine, weights = self.make(tmp_path)
        self.send(engine, weights)
        sampling = Sampling(n=4, max_tokens=6)
        first, second = self.draw(engine, sampling), self.draw(engine, sampling)
        for a, b in zip(first, second, strict=True):
            assert [c.ids.tolist() for c in a] == [c.ids.tolist() for c in b]
        assert len({tuple(c.ids.tolist()) for a in first for c in a}) > 1, "streams are all equal"

    def test_new_weights_are_used(self, tmp_path: Path) -> None:
        """No cache of older weights survives a commit."""
        engine, weights = self.make(tmp_path)
        self.send(engine, weights)
        sampling = Sampling(n=2, max_tokens=6)
        old = self.draw(engine, sampling)
        other, fresh = self.make(tmp_path, seed=1)
        self.send(engine, fresh, version=2)
        self.send(other, fresh, version=2)
        now, wanted = self.draw(engine, sampling), self.draw(other, sampling)
        for a, b in zip(now, wanted, strict=True):
            assert [c.ids.tolist() for c in a] == [c.ids.tolist() for c in b]
        assert [c.ids.tolist() for c in now[0]] != [c.ids.tolist() for c in old[0]]

    @pytest.mark.parametrize("fault", ["checksum", "missing"])
    def test_a_failed_commit_makes_it_unusable_until_the_next(
        self, tmp_path: Path, fault: str
    ) -> None:
        """A mixture of weights never draws a token."""
        engine, weights = self.make(tmp_path)
        self.send(engine, weights)
        names = list(weights)
        engine.prepare(2)
        checksum = Checksum()
        for name in names if fault == "checksum" else names[1:]:
            checksum.add(name, weights[name])
            engine.write({name: weights[name]})
        with pytest.raises(BestiaryError):
            engine.commit("0" * 16 if fault == "checksum" else checksum.hexdigest())
        with pytest.raises(BestiaryError):
            self.draw(engine, Sampling(max_tokens=2))
        self.send(engine, weights, version=3)
        assert self.draw(engine, Sampling(max_tokens=2))

    def test_responses_at_the_limit_are_truncated(self, tmp_path: Path) -> None:
        """``truncated`` comes from the engine."""
        engine, weights = self.make(tmp_path)
        self.send(engine, weights)
        for c in (c for a in self.draw(engine, Sampling(n=8, max_tokens=1)) for c in a):
            assert len(c.ids) == 1
            assert isinstance(bool(c.truncated), bool)


class TrainEngineSuite(Suite):
    """The contract of an engine that trains."""

    kind = "train_engine"

    def make(self, folder: Path, **spec: Any) -> TrainEngine:  # noqa: ANN401 - fields of ModelSpec
        """An engine of a tiny model whose losses come from the installed plugins."""
        path = tiny_model(folder / "model")
        engine: TrainEngine = self.build(replace(ModelSpec(path=str(path)), **spec), Ranks())
        return engine

    @staticmethod
    def rows() -> RowBlock:
        """A few rows of different lengths."""
        rng = np.random.default_rng(0)
        responses = [rng.integers(3, 99, n) for n in (4, 1, 6)]
        columns = {
            "prompt_ids": Ragged.from_rows([list(ids) for ids in _PROMPTS], dtype=np.int64),
            "response_ids": Ragged.from_rows(responses, dtype=np.int64),
            "response_mask": Ragged.from_rows([np.ones(len(r), bool) for r in responses], bool),
        }
        return RowBlock(columns)

    def part(self, micro: list[list[int]]) -> UpdatePart:
        """Maximum likelihood of the rows in the given micro-batches."""
        weights = np.full(3, 1.0 / 11.0)
        job = TermJob(ComponentRef("loss", "nll"), weights)
        return UpdatePart(rows=self.rows(), micro=micro, terms=[job])

    def test_a_forward_pass_has_every_token_in_row_order(self, tmp_path: Path) -> None:
        """Micro-batches decide nothing."""
        engine, rows = self.make(tmp_path), self.rows()
        whole = engine.forward(rows, [[0, 1, 2]], ["logprobs"])["logprobs"]
        parts = engine.forward(rows, [[2], [0], [1]], ["logprobs"])["logprobs"]
        assert whole.lengths.tolist() == [4, 1, 6]
        assert parts.values == pytest.approx(whole.values, abs=2e-5)
        assert (whole.values < 0).all()

    def test_an_update_learns_and_counts(self, tmp_path: Path) -> None:
        """The version rises by one, the likelihood rises, the norm is reported."""
        engine, rows = self.make(tmp_path, lr=1e-2), self.rows()
        before = engine.forward(rows, [[0, 1, 2]], ["logprobs"])["logprobs"].values.sum()
        stats = engine.update([self.part([[0, 1, 2]])])
        assert engine.version == 1
        assert stats["grad_norm"].value > 0
        after = engine.forward(rows, [[0, 1, 2]], ["logprobs"])["logprobs"].values.sum()
        assert after > before

    def test_micro_batches_do_not_change_an_update(self, tmp_path: Path) -> None:
        """Gradients add up."""
        norms = []
        for micro in ([[0, 1, 2]], [[0], [1], [2]]):
            engine = self.make(tmp_path)
            norms.append(engine.update([self.part(micro)])["grad_norm"].value)
        assert norms[0] == pytest.approx(norms[1], rel=1e-4)

    def test_state_comes_back(self, tmp_path: Path) -> None:
        """Weights, optimizer and counters: the next steps are the same."""
        one = self.make(tmp_path, lr=1e-2)
        one.update([self.part([[0, 1, 2]])])
        (tmp_path / "state").mkdir()
        one.save(tmp_path / "state")
        other = self.make(tmp_path, lr=1e-2)
        other.load(tmp_path / "state")
        assert other.version == one.version == 1
        for engine in (one, other):
            engine.update([self.part([[0, 1, 2]])])
        rows = self.rows()
        a, b = (e.forward(rows, [[0, 1, 2]], ["logprobs"])["logprobs"].values for e in (one, other))
        assert a == pytest.approx(b, abs=1e-6)

    def test_an_export_is_the_whole_model(self, tmp_path: Path) -> None:
        """Under the names and shapes of the checkpoint."""
        engine = self.make(tmp_path)
        found = {n: tuple(t.shape) for bucket in engine.export() for n, t in bucket.items()}
        wanted = {n: tuple(t.shape) for n, t in _weights(tmp_path / "model").items()}
        assert found == wanted
