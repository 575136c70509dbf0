"""Registered estimators on sequences: ``Advantage("gae", lam=0.95)(answers, rewards=…)``."""

from typing import Any

import numpy as np

from bestiary.batch import Batch
from bestiary.errors import ConfigError
from bestiary.library.sequences import Sequences, as_floats, sequences_of
from bestiary.library.values import PerSample, PerToken
from bestiary.library.workbench import workbench
from bestiary.protocols import ComponentRef
from bestiary.roles.advantage import AdvantageRole


class Estimates:
    """What an estimator made, by name: ``.advantages``, and ``.returns`` where it has them."""

    def __init__(self, its: Sequences, made: Batch) -> None:
        self._its = its
        self._made = made

    def __getattr__(self, name: str) -> PerToken | PerSample:
        made = self._made
        if name.startswith("_") or name not in made:
            raise AttributeError(f"no estimate {name!r}; there are: {', '.join(made.names())}")
        if name in made.columns:
            return PerToken.column(self._its, made, name)
        return PerSample(lambda: made[name])


class Advantage:
    """A registered advantage estimator.

    Args:
        name: as in ``bestiary plugins``: ``group``, ``gae``, ``remax``, ``rloo`` …
        options: of the estimator.

    Raises:
        UserError: if there is no such estimator or option.
    """

    def __init__(self, name: str, **options: Any) -> None:  # noqa: ANN401 - the estimator's own
        self.reference = ComponentRef("advantage", name, options)
        bench = workbench()
        self.options = bench.components.options(self.reference)
        self.estimator = bench.components.build(self.reference)
        self.owner = bench.components.owner(self.reference)
        self.services = bench.services()

    def __call__(
        self,
        sequences: Any,  # noqa: ANN401 - Sequences, or their tokens
        *,
        rewards: Any,  # noqa: ANN401 - one a sample
        values: PerToken | None = None,
        ref_log_probs: PerToken | None = None,
        old_log_probs: PerToken | None = None,
        kl_coef: float = 0.0,
        kl_kind: str = "k1",
    ) -> Estimates:
        """Advantages of the sequences; returns at once.

        Args:
            sequences: what was generated.
            rewards: one a sample, NaN for none; those of ``RewardModel.score`` bring their
                baseline along.
            values: of the critic, for estimators that read them.
            ref_log_probs: for a KL in the reward.
            old_log_probs: of the policy at the start of the step; None takes those of generation.
            kl_coef: weight of that KL; 0 is none.
            kl_kind: which estimate of it.

        Raises:
            ConfigError: naming a column that the estimator reads and nobody gave.
        """
        its = sequences_of(sequences, "Advantage")
        each = as_floats(rewards)
        rows = its.sampled.with_columns(reward=np.nan_to_num(each), valid=~np.isnan(each))
        baseline = getattr(rewards, "baseline", None)
        if baseline is not None:
            rows = rows.with_columns(baseline_reward=as_floats(baseline))
        given = {"values": values, "ref_logprobs": ref_log_probs, "old_logprobs": old_log_probs}
        for name, column in given.items():
            if column is not None:
                rows = rows.join(column.batch(name))
        if old_log_probs is None and "rollout_logprobs" in rows:
            rows = rows.join(its.log_probs.batch("old_logprobs"))
        missing = sorted(name for name in self.options.requires if name not in rows)
        if missing:
            raise ConfigError(
                f"{self.reference} reads {', '.join(missing)}, which was not given",
                hint="pass values=, ref_log_probs=, or scores of generate_sequences(…, "
                "greedy_baseline=True) for baseline_reward",
                owner=self.owner,
            )
        role = AdvantageRole(
            self.reference, self.estimator, self.options, its.group, self.services, self.owner
        )
        scalars = {"kl_coef": kl_coef, "kl_kind": kl_kind} if kl_coef else {}
        return Estimates(its, role(rows, **scalars))
