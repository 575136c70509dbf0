"""Scorers from small packages of their own, imported when chosen."""

from collections.abc import Sequence
from importlib import import_module
from typing import Any

from bestiary.protocols import Configured, Sample


def package(module: str, distribution: str, extra: str) -> Any:  # noqa: ANN401 - a module
    """Import a package, or say how to install it."""
    try:
        return import_module(module)
    except ImportError as error:
        raise ValueError(
            f"this scorer needs the package {distribution} ({error}); "
            f"pip install 'bestiary-scorers[{extra}]'"
        ) from error


class Sentiment(Configured):
    """VADER's compound score in [−1, 1] (Hutto and Gilbert 2014)."""

    def __init__(self, options: Any) -> None:  # noqa: ANN401 - as every component
        super().__init__(options)
        module = package("vader", "nltk-vader-sentiment", "sentiment")
        self._analyser = module.SentimentIntensityAnalyzer()

    def __call__(self, samples: Sequence[Sample]) -> list[float]:
        """A number for each sample."""
        return [float(self._analyser.polarity_scores(s.response)["compound"]) for s in samples]


class Toxicity(Configured):
    """Probability that the wording is abusive, by alt-profanity-check."""

    def __init__(self, options: Any) -> None:  # noqa: ANN401 - as every component
        super().__init__(options)
        self._module = package("profanity_check", "alt-profanity-check", "toxicity")

    def __call__(self, samples: Sequence[Sample]) -> list[float]:
        """A number for each sample."""
        if not samples:
            return []
        return [float(p) for p in self._module.predict_prob([s.response for s in samples])]
