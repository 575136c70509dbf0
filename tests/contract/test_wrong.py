"""The suites catch what is wrong, and say what it is."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

from bestiary.protocols import (
    AdvantageOptions,
    Configured,
    CorrectionOptions,
    LossOptions,
    Problem,
    Scope,
    Score,
)
from bestiary.testing import (
    AlgorithmSuite,
    CorrectionSuite,
    EstimatorSuite,
    LossSuite,
    RewardSuite,
    SamplerSuite,
    TaskSuite,
)


@dataclass(frozen=True, kw_only=True)
class RowOptions(AdvantageOptions):
    """Options of the estimators here."""

    scope: ClassVar[Scope] = "row"


@dataclass(frozen=True, kw_only=True)
class PlainLoss(LossOptions):
    """Options of the losses here."""

    requires: ClassVar[frozenset[str]] = frozenset({"advantages"})


@dataclass(frozen=True, kw_only=True)
class Correction(CorrectionOptions):
    """Options of the corrections here."""


def suite(base, target, options):
    """A suite of an object that is not registered."""

    class Found:
        def options_class(self):
            return options

        def load(self):
            return target

    class Here(base):
        component = "wrong"

        @classmethod
        def found(cls):
            return Found()

        @classmethod
        def build(cls, *args):
            return target(options(), *args)

    return Here()


def fails(test, match=None):
    with pytest.raises(AssertionError, match=match):
        test()


def estimator(function, options=RowOptions):
    class Made(Configured):
        def __call__(self, x, reduce, **scalars):
            return function(x, reduce)

    return suite(EstimatorSuite, Made, options)


def wide(x):
    return (x["reward"].double() * x["valid"])[:, None].expand(x.mask.shape) * x.mask


def test_a_right_estimator_passes():
    right = estimator(lambda x, reduce: {"advantages": wide(x)})
    for name in dir(right):
        if name.startswith("test_"):
            getattr(right, name)()


@pytest.mark.parametrize(
    ("function", "test", "match"),
    [
        (lambda x, r: {"advantages": wide(x)[:, :1]}, "test_it_makes_what_it_declares", "shape"),
        (lambda x, r: {"adv": wide(x)}, "test_it_makes_what_it_declares", "adv"),
        (lambda x, r: {"advantages": wide(x) / 0.0}, "test_it_makes_what_it_declares", "finite"),
        (
            lambda x, r: {"advantages": wide(x) + x.per_token("response_len") * x["reward"].mean()},
            "test_the_split_over_ranks_does_not_matter",
            "differs",
        ),
        (
            lambda x, r: {"advantages": wide(x) - wide(x).mean()},
            "test_padding_and_masked_values_do_not_matter",
            "differs",
        ),
        (
            lambda x, r: {"advantages": wide(x) * torch.arange(x.size)[:, None]},
            "test_the_order_of_rows_does_not_matter",
            "differs",
        ),
        (
            lambda x, r: {"advantages": wide(x) * torch.rand(())},
            "test_it_gives_the_same_twice",
            "differs",
        ),
        (
            lambda x, r: {"advantages": x["reward"].mul_(2.0)},
            "test_the_rows_are_left_as_they_were",
            "in place",
        ),
        (
            lambda x, r: {"advantages": torch.ones(x.size)},
            "test_invalid_samples_have_no_advantage",
            "invalid sample",
        ),
    ],
)
def test_wrong_estimators_are_caught(function, test, match):
    fails(getattr(estimator(function), test), match)


def test_an_undeclared_column_is_caught():
    class Reads(Configured):
        def __call__(self, x, reduce, **scalars):
            return {"advantages": x["reward"] + 0 * x["values"].sum()}

    here = suite(EstimatorSuite, Reads, RowOptions)
    with pytest.raises(KeyError, match="values"):  # the suite gives declared columns only
        here.test_it_makes_what_it_declares()


def test_ranks_that_reduce_unequally_are_caught():
    calls = itertools.count()

    def sometimes(x, reduce):
        if next(calls) % 2:
            reduce.sum(torch.ones(1))
        return {"advantages": wide(x)}

    fails(estimator(sometimes).test_the_split_over_ranks_does_not_matter, "different number")


def test_a_negative_weight_is_caught():
    class Made(Configured):
        def __call__(self, x, reduce):
            return {"token_weight": -x.mask.double()}

    fails(suite(CorrectionSuite, Made, Correction).test_weights_are_not_negative)


def loss(function):
    class Made(Configured):
        def __call__(self, now, x):
            return function(now, x), {}

    return suite(LossSuite, Made, PlainLoss)


def plain(now, x):
    return -x.per_token("advantages") * now.logprobs.masked_fill(~x.mask, 0)


@pytest.mark.parametrize(
    ("function", "test", "match"),
    [
        (lambda now, x: plain(now, x).mean(), "test_it_has_a_gradient", "without reducing"),
        (lambda now, x: plain(now.__class__(logprobs=now.logprobs.detach()), x) * 1.0
         + 0 * now.logprobs, "test_it_has_a_gradient", "zero everywhere"),
        (
            lambda now, x: plain(now, x) / x.mask.sum(),
            "test_any_split_into_micro_batches_adds_up",
            None,
        ),
        (
            lambda now, x: plain(now, x) * now.logprobs.shape[1],
            "test_padding_does_not_matter",
            None,
        ),
        (lambda now, x: plain(now, x) * torch.rand(()), "test_it_gives_the_same_twice", None),
    ],
)  # fmt: skip
def test_wrong_losses_are_caught(function, test, match):
    here = loss(function)
    run = getattr(here, test)
    fails((lambda: run(0)) if "split" in test else run, match)


def test_options_without_documentation_or_frozenness_are_caught():
    @dataclass(frozen=True, kw_only=True)
    class Bare(AdvantageOptions):
        """Has a field without a docstring."""

        size: int = 1

    @dataclass(kw_only=True)
    class Loose:
        """Is not frozen."""

    fails(
        suite(
            EstimatorSuite, Configured, Bare
        ).test_options_are_a_frozen_dataclass_with_documented_fields,
        "size",
    )
    fails(
        suite(
            RewardSuite, Configured, Loose
        ).test_options_are_a_frozen_dataclass_with_documented_fields,
        "frozen",
    )


@dataclass(frozen=True, kw_only=True)
class Nothing:
    """No options."""


def reward(function):
    class Made(Configured):
        def __call__(self, samples):
            return function(samples)

    return suite(RewardSuite, Made, Nothing)


@pytest.mark.parametrize(
    ("function", "test", "error"),
    [
        (lambda s: [0.0] * max(0, len(s) - 1), "test_it_scores_every_sample_whatever_its_text",
         Exception),
        (lambda s: [float(x.response) for x in s], "test_it_scores_every_sample_whatever_its_text",
         ValueError),
        (lambda s: [float(i) for i in range(len(s))], "test_a_score_depends_on_its_sample_only",
         AssertionError),
        (lambda s: [Score(0.0, spans=((0, 1, 1.0),)) if x.response_len else 0.0 for x in s],
         "test_spans_are_declared", AssertionError),
    ],
)  # fmt: skip
def test_wrong_rewards_are_caught(function, test, error):
    with pytest.raises(error):
        getattr(reward(function), test)()


class Endless:
    """Asks for more for ever, and forgets where it was."""

    def __init__(self, options, source):
        self.source, self.at = source, 0

    def draw(self, n):
        self.at += n
        return self.source.hand_out([(self.at + i) % len(self.source) for i in range(n)])

    def accept(self, groups):
        return groups.take(range(len(groups) - 1)), 1

    def observe(self, batch):
        pass

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


@pytest.mark.parametrize(
    ("test", "match"),
    [
        ("test_accepted_rows_are_whole_groups_of_the_batch", "cut"),
        ("test_refilling_ends", "still asks"),
        ("test_a_resumed_sampler_goes_on_exactly_there", None),
    ],
)
def test_wrong_samplers_are_caught(test, match):
    fails(getattr(suite(SamplerSuite, Endless, Nothing), test), match)


class Leaky(Configured):
    """Holds out what it trains on."""

    reward, max_tokens, stop = "exact_match", 4, ()

    def problems(self, split) -> Sequence[Problem]:
        return [Problem(uid="u", prompt="1+1="), Problem(uid="v", prompt="2", target="x")]


@pytest.mark.parametrize(
    ("test", "match"),
    [
        ("test_splits_are_there_and_apart", None),
        ("test_targets_are_all_there_or_none", "some problems have a target"),
    ],
)
def test_wrong_tasks_are_caught(test, match):
    fails(getattr(suite(TaskSuite, Leaky, Nothing), test), match)


def test_a_suite_without_a_component_says_so():
    class Bare(AlgorithmSuite):
        pass

    fails(Bare().test_it_is_built_from_its_options, "set `component`")
