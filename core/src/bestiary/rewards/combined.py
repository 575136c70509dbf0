"""The reward ``sum``: several rewards at once, each a part."""

from collections.abc import Mapping, Sequence

from bestiary.errors import RewardError
from bestiary.plugins.manager import load_plugins
from bestiary.protocols import ComponentRef, Sample, Score
from bestiary.rewards.calling import DirectScorer
from bestiary.rewards.check import Checked
from bestiary.rewards.loading import load_reward, reward_ref
from bestiary.rewards.options import SumOptions


class SumReward:
    """Σ weight·score over its rewards; each unweighted score is a part under the reward's name.

    A sample that one of them cannot score is invalid. Parts of a reward become
    ``<reward>.<part>``, spans are multiplied by its weight.

    Args:
        options: which ones.

    Raises:
        RewardError: if none is named, one cannot be built, or a weight or options name another.
    """

    def __init__(self, options: SumOptions) -> None:
        _check(options)
        plugins = load_plugins()
        self.weights = {name: float(options.weights.get(name, 1.0)) for name in options.of}
        self._scorers: dict[str, DirectScorer] = {}
        for name in options.of:
            ref = reward_ref(name)
            given = dict(options.options.get(name, {}))
            reward = load_reward(
                ComponentRef("reward", ref.name, {**ref.options, **given}), plugins
            )
            self._scorers[name] = DirectScorer(reward)
        self.spans = any(
            bool(getattr(s.reward.function, "spans", False)) for s in self._scorers.values()
        )
        self.digest = "+".join(filter(None, (s.reward.digest for s in self._scorers.values())))

    def __call__(self, samples: Sequence[Sample]) -> list[Score | None]:
        """One score for each sample."""
        made = {name: scorer(samples) for name, scorer in self._scorers.items()}
        return [
            self._one({name: checked[i] for name, checked in made.items()})
            for i in range(len(samples))
        ]

    def _one(self, scores: Mapping[str, Checked]) -> Score | None:
        if not all(score.valid for score in scores.values()):
            return None
        parts = {name: score.value for name, score in scores.items()}
        for name, score in scores.items():
            parts |= {f"{name}.{part}": value for part, value in score.parts.items()}
        spans = tuple(
            (start, end, value * self.weights[name])
            for name, score in scores.items()
            for start, end, value in score.spans
        )
        value = sum(self.weights[name] * score.value for name, score in scores.items())
        return Score(value, parts, spans)


def _check(options: SumOptions) -> None:
    if not options.of or len(set(options.of)) < len(options.of):
        raise RewardError(
            f"reward sum: of={list(options.of)} must name rewards, each once",
            hint="set reward.of=[exact_match,overlong] reward.options={overlong: {limit: 64}}",
        )
    for what, given in (("weights", options.weights), ("options", options.options)):
        other = sorted(set(given) - set(options.of))
        if other:
            raise RewardError(
                f"reward sum: {what} names {', '.join(other)}, which is not in "
                f"of={list(options.of)}"
            )
