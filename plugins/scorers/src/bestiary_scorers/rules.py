"""Scorers that are rules."""

import re
from collections.abc import Sequence

from bestiary.protocols import Configured, Sample
from bestiary_scorers.options import LengthOptions, OverlongOptions, PatternOptions


class Length(Configured):
    """scale · max(0, tokens − target), bounded by the cap."""

    options: LengthOptions

    def __call__(self, samples: Sequence[Sample]) -> list[float]:
        """A number for each sample, from its tokens."""
        o = self.options
        scores = [o.scale * max(0, s.response_len - o.target) for s in samples]
        return scores if o.cap is None else [min(max(x, -o.cap), o.cap) for x in scores]


class Pattern(Configured):
    """scale · min(occurrences, most)."""

    options: PatternOptions

    def __init__(self, options: PatternOptions) -> None:
        super().__init__(options)
        if not options.pattern:
            raise ValueError("pattern is empty; set reward.pattern (or cost.pattern)")
        self._compiled = re.compile(options.pattern)

    def __call__(self, samples: Sequence[Sample]) -> list[float]:
        """A number for each sample, from its text."""
        o = self.options
        return [
            o.scale * min(o.most, sum(1 for _ in self._compiled.finditer(s.response)))
            for s in samples
        ]


class Overlong(Configured):
    """0 up to limit − buffer tokens, then falling linearly to −1 at the limit."""

    options: OverlongOptions

    def __init__(self, options: OverlongOptions) -> None:
        super().__init__(options)
        if options.limit < 1:
            raise ValueError("limit is not set; set reward.limit to the longest response in tokens")

    def __call__(self, samples: Sequence[Sample]) -> list[float]:
        """A number in [−1, 0] for each sample."""
        o = self.options
        start = o.limit - o.buffer
        return [min(0.0, max(-1.0, (start - s.response_len) / o.buffer)) for s in samples]
