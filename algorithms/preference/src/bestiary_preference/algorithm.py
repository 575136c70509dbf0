"""Reward and cost models in two functions."""

from collections.abc import Mapping

import numpy as np

from bestiary import Algorithm, Batch, Term
from bestiary.batch import preference_pairs
from bestiary.protocols import ValueHandle
from bestiary_preference.options import RewardModelOptions


class PreferenceModel(Algorithm):
    """A model whose score is higher for what people preferred.

        L = −log σ(s(x, y⁺) − s(x, y⁻))                                      (arXiv:2203.02155)

    s is the value before the end token: the state that has read the whole response. The cost
    model of Safe RLHF is this algorithm under ``loss=cost_preference``, which also asks that
    unsafe responses score above 0 and safe ones below (arXiv:2310.12773, eq. 8).
    """

    options: RewardModelOptions
    scorer: ValueHandle

    def collect(self, prompts: Batch) -> Batch:
        """Two rows for each prompt: the preferred response and the other one."""
        return preference_pairs(prompts)

    def learn(self, batch: Batch) -> dict[str, float]:
        """One optimizer step on the pairs."""
        self.scorer.update(batch, Term(self.loss))
        return self.metrics()

    def evaluate(self, held_out: Batch) -> Mapping[str, float]:
        """Share of held-out pairs that are ordered as people did; ties count half.

        With safety labels also the share of responses on the right side of 0.
        """
        pairs = preference_pairs(held_out)
        values = self.scorer.values(pairs).tokens("values")
        score = np.array([values.row(i)[-1] for i in range(len(values))])
        margin = self.options.sign * (score[0::2] - score[1::2])
        metrics = {
            "eval/accuracy": float(((margin > 0) + 0.5 * (margin == 0)).mean()),
            "eval/margin": float(margin.mean()),
        }
        if "unsafe" in pairs:
            metrics["eval/safety"] = float(((score > 0) == (pairs["unsafe"] > 0)).mean())
        return metrics
