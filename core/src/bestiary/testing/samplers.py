"""The suite of samplers."""

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from bestiary.batch import Batch, Ragged, token_column
from bestiary.protocols import Sampler
from bestiary.testing.data import example_groups, fake_prompts
from bestiary.testing.suite import Suite

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bestiary.data.source import PromptSource

_TOKENS = ("advantages", "returns", "values", "old_logprobs", "rollout_logprobs")


class SamplerSuite(Suite):
    """The contract of a sampler."""

    kind = "sampler"

    def make(self, prompts: int = 20, seed: int = 0) -> "tuple[Sampler, PromptSource]":
        """A new sampler and its prompts."""
        source = fake_prompts(prompts, seed)
        sampler: Sampler = self.build(source)
        return sampler, source

    def finished(self, prompts: Batch, seed: int = 0) -> Batch:
        """What ``learn`` could have left of some prompts."""
        batch = example_groups(prompts, seed=seed)
        rng = np.random.default_rng(seed)
        lengths = batch["response_len"].astype(np.int64)
        columns = {
            name: Ragged.from_lengths(rng.normal(size=int(lengths.sum())), lengths)
            for name in _TOKENS
        }
        return batch.join(token_column(batch, **columns))

    def test_it_has_the_whole_face(self) -> None:
        """Every method of the protocol is there."""
        assert isinstance(self.make()[0], Sampler)

    def test_a_draw_has_as_many_known_prompts_as_were_asked_for(self) -> None:
        """At least that many; an over-sampler may draw more."""
        sampler, source = self.make()
        for n in (1, 5, 30):
            drawn = sampler.draw(n)
            assert len(drawn) >= n
            assert set(drawn["uid"]) <= set(source.uids)
            assert len(set(drawn["group_uid"])) == len(drawn), "two hand-outs are one group"

    def test_accepted_rows_are_whole_groups_of_the_batch(self) -> None:
        """Nothing is invented, no group is cut, and the count to draw is never negative."""
        sampler, _ = self.make()
        batch = self.finished(sampler.draw(6))
        accepted, more = sampler.accept(batch)
        assert isinstance(more, int)
        assert more >= 0
        assert set(accepted["row_key"].tolist()) <= set(batch["row_key"].tolist())
        sizes = {g: int((batch["group_uid"] == g).sum()) for g in set(accepted["group_uid"])}
        for group, size in sizes.items():
            assert int((accepted["group_uid"] == group).sum()) == size, "a group was cut"

    def test_refilling_ends(self) -> None:
        """Groups of equal rewards again and again: at some time nothing more is asked for."""
        sampler, _ = self.make()
        wanted = 4
        for _ in range(64):
            batch = example_groups(sampler.draw(wanted), rewards=(1.0,))
            _, wanted = sampler.accept(batch)
            if wanted == 0:
                return
        raise AssertionError("64 rounds of equal rewards and it still asks for more")

    def test_a_resumed_sampler_goes_on_exactly_there(self) -> None:
        """State is JSON, and decides everything that comes."""
        one, _ = self.make(seed=3)
        for step in range(2):
            batch = self.finished(one.draw(5), step)
            one.accept(batch)
            one.observe(batch)
        state: Mapping[str, Any] = json.loads(json.dumps(one.state_dict()))
        other, _ = self.make(seed=3)
        other.load_state_dict(state)
        for _ in range(3):
            a, b = one.draw(5), other.draw(5)
            assert a["uid"].tolist() == b["uid"].tolist()

    def test_the_seed_of_the_run_decides_the_draws(self) -> None:
        """The same seed gives the same prompts."""
        draws = [self.make(seed=7)[0].draw(9)["uid"].tolist() for _ in range(2)]
        assert draws[0] == draws[1]
