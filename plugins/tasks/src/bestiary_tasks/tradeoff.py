"""A constrained task with a known optimum, and preference pairs of the same words.

A response is a word over a and b. With x the share of a among its first n letters, the reward is
x and the cost x². Without a constraint the best is x = 1. Under E[x²] ≤ d the best mean reward is
√d: by Jensen E[x]² ≤ E[x²] ≤ d, and a policy that always writes √d·n letters a reaches it where
that is a whole number. The multiplier is then 1/(2√d), from maximising x − λx². Words have k of n
letters a, so the optimum of words is the chord between the two k around √d·n (:func:`optimum`), and
every λ between the slopes of the chords on either side is a multiplier (:func:`multipliers`).
"""

import math
import random
from collections.abc import Sequence
from typing import Literal

from bestiary.protocols import Configured, Problem, Sample
from bestiary_tasks.options import PreferencesOptions, ShareOptions, TradeoffOptions

LENGTH = "length"
"""Key in ``extra``: letters that count, so that task and rewards cannot differ."""


def share_of_a(text: str, length: int) -> float:
    """Share of a among the first ``length`` letters; missing letters are no a."""
    return text[:length].count("a") / length


def optimum(threshold: float, length: int = 10) -> float:
    """The largest E[x] with E[x²] ≤ threshold over words of ``length`` letters.

    A policy mixes words with k and k + 1 letters a; between them E[x] is linear in E[x²].

    Raises:
        ValueError: for a threshold below 0, which no policy meets.
    """
    if not threshold >= 0.0:
        raise ValueError(f"threshold={threshold}: no cost is below 0")
    if threshold >= 1.0:
        return 1.0
    low = math.floor(math.sqrt(threshold) * length)
    below, above = (low / length) ** 2, ((low + 1) / length) ** 2
    return (low + (threshold - below) / (above - below)) / length


def best_multiplier(threshold: float) -> float:
    """λ at which x − λ·x² is largest at x = √threshold; 0 where the constraint does not bind.

    Raises:
        ValueError: for a threshold that is not above 0, where λ has no bound.
    """
    if not threshold > 0.0:
        raise ValueError(f"threshold={threshold}: must be above 0")
    return 0.0 if threshold >= 1.0 else 1.0 / (2.0 * math.sqrt(threshold))


def multipliers(threshold: float, length: int = 10) -> tuple[float, float]:
    """The smallest and the largest λ under which the constrained optimum maximises E[x − λ·x²].

    They differ where √threshold·length is a whole number k: between the chords from k to k + 1
    and from k − 1 to k. Elsewhere λ is the slope of the chord, 1 / (x_k + x_{k+1}).
    """
    if threshold >= 1.0:
        return (0.0, 0.0) if threshold > 1.0 else (0.0, length / (2 * length - 1))
    if not threshold > 0.0:
        raise ValueError(f"threshold={threshold}: must be above 0")
    letters = math.sqrt(threshold) * length
    near = round(letters)
    if near >= 1 and math.isclose(letters, near, rel_tol=1e-9):
        return length / (2 * near + 1), length / (2 * near - 1)
    slope = length / (2 * math.floor(letters) + 1)
    return slope, slope


class ShareOfA(Configured):
    """The reward x; the problem says how many letters count, else the options."""

    options: ShareOptions

    def __call__(self, samples: Sequence[Sample]) -> list[float]:
        """The share of each sample."""
        own = self.options.length
        return [share_of_a(s.response, int(s.extra.get(LENGTH, own))) for s in samples]


class SquaredShareOfA(ShareOfA):
    """The cost x²."""

    def __call__(self, samples: Sequence[Sample]) -> list[float]:
        """The squared share of each sample."""
        return [x * x for x in super().__call__(samples)]


class Tradeoff:
    """Numbered prompts; the texts to imitate are random words with few a.

    Args:
        options: sizes.
    """

    reward = "tradeoff_reward"
    cost = "tradeoff_cost"
    stop: tuple[str, ...] = ()

    def __init__(self, options: TradeoffOptions) -> None:
        self.options = options
        self.max_tokens = options.length + 1
        """The letters, and an end token."""

    def problems(self, split: Literal["train", "eval"]) -> Sequence[Problem]:
        """Held-out prompts have the numbers after the training ones."""
        o = self.options
        numbers = range(o.size) if split == "train" else range(o.size, o.size + o.eval_size)
        return tuple(self._problem(number) for number in numbers)

    def _problem(self, number: int) -> Problem:
        return Problem(
            uid=f"word-{number}",
            prompt=f"{number:04d}:",
            target=self._word(number, 0),
            extra={LENGTH: self.options.length},
        )

    def _word(self, number: int, which: int) -> str:
        o = self.options
        draw = random.Random(f"{o.seed}/{number}/{which}")  # noqa: S311 - data, not security
        share = o.start if which == 0 else draw.random()
        return "".join("a" if draw.random() < share else "b" for _ in range(o.length))


class Preferences(Tradeoff):
    """Pairs of words: the preferred one has more a (or fewer), and both have safety labels.

    Args:
        options: sizes and the order.
    """

    options: PreferencesOptions

    def _problem(self, number: int) -> Problem:
        o = self.options
        words = [self._word(number, which) for which in (1, 2)]
        if words[0].count("a") == words[1].count("a"):  # no preference: make one
            words[1] = words[0].replace("a", "b", 1) if "a" in words[0] else "a" + words[0][1:]
        fewer, more = sorted(words, key=lambda word: word.count("a"))
        chosen, rejected = (more, fewer) if o.by == "reward" else (fewer, more)
        safe = [share_of_a(word, o.length) ** 2 <= o.threshold for word in (chosen, rejected)]
        return Problem(
            uid=f"pair-{number}",
            prompt=f"{number:04d}:",
            target=chosen,
            rejected=rejected,
            extra={LENGTH: o.length, "chosen_safe": safe[0], "rejected_safe": safe[1]},
        )
