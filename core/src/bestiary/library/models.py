"""Models as objects: a policy that is trained, a frozen reference, a critic."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bestiary.batch import Batch
from bestiary.distributed.pools import ResourcePool
from bestiary.engines.engine_api import ModelSpec
from bestiary.errors import ConfigError
from bestiary.library.parallel import engine_options
from bestiary.library.prompts import Prompts, answered, prompt_batch
from bestiary.library.sequences import Sequences, as_floats, sequences_of
from bestiary.library.values import PerSample, PerToken
from bestiary.library.workbench import Workbench, workbench
from bestiary.models.resolve import resolve_model
from bestiary.models.tokenizer import Tokenizer
from bestiary.protocols import ComponentRef, Sampling, Term
from bestiary.roles.model import Model
from bestiary.roles.policy import PolicyRole
from bestiary.roles.services import Ledger
from bestiary.roles.trained import TrainedRole
from bestiary.roles.value import ValueRole
from bestiary.runtime.worker import ModelPlan

BASELINE = Sampling(n=1, greedy=True, trainable=False, tag="baseline")


class Metrics(Mapping[str, float]):
    """What an update reported; reading waits for it."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._values: dict[str, float] | None = None

    def _read(self) -> dict[str, float]:
        if self._values is None:
            self._values = self._ledger.drain()
        return self._values

    def __getitem__(self, name: str) -> float:
        return self._read()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._read())

    def __len__(self) -> int:
        return len(self._read())

    def __repr__(self) -> str:
        return repr(self._read())


class _Held:
    """A model in the processes of a pool.

    Args:
        kind: what it is called.
        model: a folder, a hub name, ``tiny:arch=llama`` …
        spec: head, and whether it is trained.
        pool: where; None is one device of its own kind.
        training: options of the training engine.
        rollout: options of the rollout engine; None for a model that does not generate.
    """

    def __init__(
        self,
        kind: str,
        model: str,
        *,
        head: str,
        trainable: bool,
        dtype: str,
        pool: ResourcePool | None,
        training: Mapping[str, Any],
        rollout: Mapping[str, Any] | None,
    ) -> None:
        bench = workbench()
        self.bench: Workbench = bench
        self.folder: Path = resolve_model(model)
        self.tokenizer = Tokenizer(self.folder)
        train = ComponentRef("train_engine", "fsdp", dict(training))
        bench.components.options(train)  # a wrong option is an error here, not in a worker
        draws = None if rollout is None else ComponentRef("rollout_engine", "local", dict(rollout))
        if draws is not None:
            bench.components.options(draws)
        spec = ModelSpec(
            path=str(self.folder),
            head=head,  # type: ignore[arg-type]  # ours
            dtype=dtype,  # type: ignore[arg-type]  # checked by the engine
            trainable=trainable,
        )
        self.pool = default_pool() if pool is None else pool
        self.name = bench.name(kind)
        group = bench.group(self.pool)
        group.run("hold", self.name, ModelPlan(spec, train, draws))
        micro = int(bench.components.options(train).tokens_per_micro)
        self.model = Model(self.name, group, micro)
        self.model.learn_sizes()
        bench.warn_if_shared()

    @property
    def version(self) -> int:
        """Optimizer steps so far; waits for all that were asked for."""
        return int(self.model.state()[0]["version"])

    def save(self, folder: str | Path) -> Path:
        """Write the weights in ``save_pretrained`` layout, loadable by transformers."""
        target = Path(folder).expanduser().absolute()
        self.model.group.run("export", self.name, str(target))
        return target

    def _update(self, role: TrainedRole, rows: Batch, term: Term, more: Sequence[Term]) -> Metrics:
        role.services.ledger = Ledger()
        role.update(rows, term, *more)
        return Metrics(role.services.ledger)


class _Policy(_Held):
    """What actor and reference share: log-probabilities of responses."""

    role: PolicyRole

    def get_log_probs(
        self,
        prompts: Any,  # noqa: ANN401 - the prompts are part of the sequences; checked in length
        sequences: Any,  # noqa: ANN401 - Sequences, or their tokens
    ) -> PerToken:
        """Log-probabilities of the responses under this model; returns at once.

        At the temperature at which the sequences were drawn, in float32 at least.

        Args:
            prompts: of the sequences; may be None.
            sequences: what ``generate_sequences`` returned, its ``.sequences``, or what
                ``sequences(prompts, texts)`` made of given texts.
        """
        its = sequences_of(sequences, "get_log_probs")
        check_prompts(prompts, its)
        self.role.temperature = its.temperature
        made = self.role.logprobs(its.sampled, into="log_probs")
        return PerToken.column(its, made, "log_probs")


class Actor(_Policy):
    """The policy that generates and is trained.

    Args:
        model: a folder, a hub name, or ``tiny:`` for a tiny model with random weights.
        parallel_config: ``{"fsdp": "full_shard"}``, see :mod:`bestiary.library.parallel`.
        resource_pool: where it lives; models on one pool share its processes.
        dtype: ``fp32`` or ``bf16``; master weights and optimizer stay float32.
        rollout: options of the rollout engine.
        training: options of the training engine, as in ``lr=1e-5`` (``bestiary train --info
            train_engine=fsdp`` lists them).

    Raises:
        UserError: for a model, an option or a pool that cannot be had.
    """

    def __init__(
        self,
        model: str,
        *,
        parallel_config: Mapping[str, Any] | None = None,
        resource_pool: ResourcePool | None = None,
        dtype: str = "fp32",
        rollout: Mapping[str, Any] | None = None,
        **training: Any,  # noqa: ANN401 - options of the engine
    ) -> None:
        super().__init__(
            "actor",
            model,
            head="lm",
            trainable=True,
            dtype=dtype,
            pool=resource_pool,
            training={**engine_options(parallel_config), **training},
            rollout=rollout or {},
        )
        self.role = PolicyRole(self.name, self.model, self.bench.services())

    def generate_sequences(
        self,
        prompts: Prompts | str,
        *,
        n: int = 1,
        max_tokens: int = 64,
        temperature: float = 1.0,
        top_p: float = 1.0,
        top_k: int = 0,
        stop: Sequence[str] = (),
        greedy: bool = False,
        greedy_baseline: bool = False,
    ) -> Sequences:
        """Draw ``n`` responses to each prompt; returns at once.

        Args:
            prompts: texts, or problems as ``load_prompts`` gives them.
            n: responses to each.
            max_tokens: of a response.
            temperature: of the distribution that is drawn from.
            top_p: nucleus sampling; 1 is off.
            top_k: the k most likely tokens; 0 is off.
            stop: texts that end a response.
            greedy: take the most likely token instead.
            greedy_baseline: also one greedy response to each prompt, in the same engine call:
                its score is ``scores.baseline`` of ``RewardModel.score`` (ReMax).
        """
        kind = Sampling(
            n=n, max_tokens=max_tokens, temperature=temperature, top_p=top_p, top_k=top_k,
            stop=tuple(stop), greedy=greedy,
        )  # fmt: skip
        kinds = [kind]
        if greedy_baseline:
            kinds.append(replace(BASELINE, max_tokens=max_tokens, stop=tuple(stop)))
        batch = self.role.generate(prompt_batch(prompts, self.tokenizer, self.bench), kinds)
        return Sequences(batch, self.model.group, self.tokenizer, temperature)

    def sequences(
        self, prompts: Prompts | str, texts: Sequence[str] | Sequence[Sequence[int]]
    ) -> Sequences:
        """Given responses (texts, or lists of token ids) as sequences: for supervised training.

        As many for each prompt as there are in all, in order. Texts get the end token.
        """
        rows = prompt_batch(prompts, self.tokenizer, self.bench)
        each, rest = divmod(len(texts), len(rows))
        if rest or not each:
            raise ValueError(f"{len(texts)} responses cannot be shared out to {len(rows)} prompts")
        ids = [self.tokenizer.encode_target(t) if isinstance(t, str) else list(t) for t in texts]
        return Sequences(answered(rows, ids, each), self.model.group, self.tokenizer, 1.0)

    def update(
        self,
        states: Any = None,  # noqa: ANN401 - the prompts are part of the sequences
        actions: Any = None,  # noqa: ANN401 - Sequences, or their tokens
        advantages: Any = None,  # noqa: ANN401 - one a sample or one a token
        *,
        loss: str = "reinforce",
        old_log_probs: PerToken | None = None,
        ref_log_probs: PerToken | None = None,
        terms: Sequence[Term] = (),
        **options: Any,  # noqa: ANN401 - options of the loss
    ) -> Metrics:
        """One optimizer step; returns at once, and what it reports waits when read.

        Args:
            states: the prompts; part of the sequences, so may be None.
            actions: the sequences or their ``.sequences``.
            advantages: [B] numbers (a sample of NaN is left out of everything), or a column of
                tokens. May be None for a loss that reads none.
            loss: name of a registered loss: ``reinforce``, ``clip``, ``gspo``, ``nll`` …
            old_log_probs: of the policy at the start of the step, for losses with a ratio; None
                takes those of generation.
            ref_log_probs: for losses that read them (``kl``).
            terms: further summands, as in ``[Term("entropy", coef=-0.01)]``.
            options: of the loss, as in ``clip_low=0.2``.

        Raises:
            ConfigError: for a loss or option that there is not, or a column that is missing.
        """
        its = sequences_of(actions if actions is not None else states, "update")
        if actions is not None:
            check_prompts(states, its)
        rows = with_advantages(its, advantages)
        for name, column in (("old_logprobs", old_log_probs), ("ref_logprobs", ref_log_probs)):
            if column is not None:
                rows = rows.join(column.batch(name))
        if old_log_probs is None and "rollout_logprobs" in rows:
            rows = rows.join(its.log_probs.batch("old_logprobs"))
        self.role.temperature = its.temperature
        return self._update(self.role, rows, Term(loss, options=options), terms)


class ReferencePolicy(_Policy):
    """A policy that is never updated.

    Args:
        model: a folder, a hub name, or ``tiny:``.
        parallel_config: as for the actor.
        resource_pool: where it lives; on the actor's pool it shares the actor's processes.
        dtype: ``fp32`` or ``bf16``.
    """

    def __init__(
        self,
        model: str,
        *,
        parallel_config: Mapping[str, Any] | None = None,
        resource_pool: ResourcePool | None = None,
        dtype: str = "fp32",
    ) -> None:
        super().__init__(
            "reference",
            model,
            head="lm",
            trainable=False,
            dtype=dtype,
            pool=resource_pool,
            training=engine_options(parallel_config),
            rollout=None,
        )
        self.role = PolicyRole(self.name, self.model, self.bench.services(), frozen=True)


class Critic(_Held):
    """A model with a number for each token: the value before it.

    Args:
        model: a folder, a hub name, or ``tiny:``; a value head is added.
        parallel_config: as for the actor.
        resource_pool: where it lives.
        dtype: ``fp32`` or ``bf16``.
        training: options of the training engine, as in ``lr=1e-5``.
    """

    def __init__(
        self,
        model: str,
        *,
        parallel_config: Mapping[str, Any] | None = None,
        resource_pool: ResourcePool | None = None,
        dtype: str = "fp32",
        **training: Any,  # noqa: ANN401 - options of the engine
    ) -> None:
        super().__init__(
            "critic",
            model,
            head="value",
            trainable=True,
            dtype=dtype,
            pool=resource_pool,
            training={**engine_options(parallel_config), **training},
            rollout=None,
        )
        self.role = ValueRole(self.name, self.model, self.bench.services())

    def get_values(self, prompts: Any, sequences: Any) -> PerToken:  # noqa: ANN401 - as get_log_probs
        """The value before each response token; returns at once."""
        its = sequences_of(sequences, "get_values")
        check_prompts(prompts, its)
        return PerToken.column(its, self.role.values(its.sampled), "values")

    def update(
        self,
        states: Any = None,  # noqa: ANN401 - as for the actor
        actions: Any = None,  # noqa: ANN401
        returns: PerToken | PerSample | None = None,
        *,
        old_values: PerToken | None = None,
        loss: str = "value",
        **options: Any,  # noqa: ANN401 - options of the loss
    ) -> Metrics:
        """One optimizer step towards ``returns``; returns at once.

        Args:
            states: the prompts; part of the sequences, so may be None.
            actions: the sequences or their ``.sequences``.
            returns: a column of tokens.
            old_values: at the start of the step, which the value is clipped around; None takes
                the present ones.
            loss: name of a registered loss.
            options: of the loss, as in ``clip=0.2``.
        """
        its = sequences_of(actions if actions is not None else states, "update")
        if not isinstance(returns, PerToken):
            raise ConfigError(
                f"update of {self.name}: returns is {type(returns).__name__}; a column of tokens "
                "is wanted",
                hint="Advantage('gae')(…).returns is one",
            )
        if old_values is None:
            old_values = self.get_values(states, its)
        rows = its.sampled.join(returns.batch("returns"), old_values.batch("values"))
        return self._update(self.role, rows, Term(loss, options=options), ())


def with_advantages(its: Sequences, advantages: Any) -> Batch:  # noqa: ANN401 - as update takes them
    """The sampled rows with the column ``advantages``; samples without one are not valid."""
    if advantages is None:
        return its.sampled
    if isinstance(advantages, PerToken):
        return advantages.batch("advantages")
    if hasattr(advantages, "dim") and advantages.dim() == 2:
        return its.sampled.join(per_token_tensor(its, advantages).batch("advantages"))
    each = as_floats(advantages)
    if each.shape != (len(its),):
        raise ConfigError(
            f"advantages have the shape {each.shape}; [{len(its)}], one number a sample, or a "
            "column of tokens is wanted"
        )
    return its.sampled.with_columns(advantages=np.nan_to_num(each), valid=~np.isnan(each))


def per_token_tensor(its: Sequences, values: Any) -> PerToken:  # noqa: ANN401 - a tensor
    """[B, T] numbers of this process as a column of the sequences."""
    from bestiary.batch import token_column
    from bestiary.batch.ragged import Ragged

    lengths = its.sampled["response_len"]
    padded = np.asarray(values.detach().cpu().numpy())
    if padded.ndim != 2 or padded.shape[0] != len(its) or padded.shape[1] < lengths.max(initial=0):
        raise ConfigError(
            f"a tensor of the shape {padded.shape} for {len(its)} responses of up to "
            f"{int(lengths.max(initial=0))} tokens; [B, T], padded on the right, is wanted"
        )
    column = token_column(its.sampled, given=Ragged.from_padded(padded, lengths))
    return PerToken.column(its, column, "given")


def check_prompts(prompts: Any, its: Sequences) -> None:  # noqa: ANN401 - whatever was passed
    """Refuse prompts that are not those of the sequences."""
    if prompts is None or not hasattr(prompts, "__len__") or isinstance(prompts, str):
        return
    groups = len(set(its.sampled["group_uid"]))
    if len(prompts) not in (groups, len(its)):
        raise ConfigError(
            f"{len(prompts)} prompts for sequences of {groups} prompts; they carry their own, so "
            "pass those that they were made from, or None"
        )


def default_pool() -> ResourcePool:
    """One device: an accelerator where there is one, else a CPU slot."""
    import torch

    kind = "cuda" if torch.cuda.is_available() else "cpu"
    return ResourcePool(devices=[f"{kind}:0"], name="default")
