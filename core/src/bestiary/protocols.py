"""The typed faces that plugins implement and algorithms are written against.

Light on purpose: this module imports neither torch nor ray, so that options, requirements and
roles can be read by ``bestiary plugins``, ``--info``, validation and ``plan`` without them. One
long file on purpose: it is the whole contract, read from top to bottom by whoever writes a plugin.

Shape legend for tensors named here: B samples of a batch, b rows of one micro-batch, T response
tokens padded on the right.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from bestiary.batch import Batch, Rows

RoleKind = Literal["policy", "value", "score"]
Scope = Literal["sample", "row", "group"]
WeightMode = Literal[
    "token-mean",
    "token-sum",
    "seq-mean-token-sum",
    "seq-mean-token-mean",
    "seq-mean-token-sum-norm",
]

# --------------------------------------------------------------------------- values


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampling:
    """How the responses of one kind are drawn; several of them make one engine call.

    Training draws at temperature 1 without truncation unless an algorithm says otherwise.
    """

    n: int = 1
    """Responses for each prompt."""
    temperature: float = 1.0
    """Divides the logits; the trainer's log-probabilities use the same value."""
    top_p: float = 1.0
    top_k: int = 0
    """0 keeps the whole vocabulary."""
    min_p: float = 0.0
    greedy: bool = False
    """Take the most probable token (the lowest id among equals); one response for each prompt."""
    max_tokens: int = 16
    """Response tokens at most, the end token included."""
    stop: tuple[str, ...] = ()
    """Texts that end a response; they stay part of it."""
    tag: str = "sample"
    """Written to the sample column ``tag``."""
    trainable: bool = True
    """False for rows that serve as a baseline or for evaluation only."""

    def __post_init__(self) -> None:
        if self.n < 1:
            raise ValueError(f"sampling n={self.n}: at least 1 response for each prompt is needed")
        if self.max_tokens < 1:
            raise ValueError(f"sampling max_tokens={self.max_tokens}: must be at least 1")
        if not self.temperature > 0.0:
            raise ValueError(
                f"sampling temperature={self.temperature}: must be above 0; use greedy=true for "
                "the most probable token"
            )
        if not 0.0 < self.top_p <= 1.0:
            raise ValueError(f"sampling top_p={self.top_p}: must be in (0, 1]")
        if self.top_k < 0 or not 0.0 <= self.min_p < 1.0:
            raise ValueError(f"sampling top_k={self.top_k} min_p={self.min_p}: out of range")
        if self.greedy and self.n != 1:
            raise ValueError(f"sampling greedy=true with n={self.n}: equal responses; use n=1")


_VALUE_ROLES = ("critic", "cost_critic")
_SCORE_ROLES = ("reward", "cost")


@dataclass(frozen=True, slots=True)
class Role:
    """A view of a model, or of a scorer, under the name that the algorithm uses for it.

    Args:
        name: attribute of the algorithm; ``actor reference critic cost_critic reward cost`` have
            the kinds that the field gives them, other names need ``kind``.
        frozen: never updated (weights only, no gradients and no optimizer).
        kind: ``policy`` (language-model head), ``value`` (a number for each token) or ``score``
            (a number for each sample: a reward function or a reward model).
        model: which model it is a view of; empty is the model of the same name, and
            ``reference`` starts from the actor's base weights.
        adapter: ``off`` is the base of a LoRA model, so a reference costs no memory. A frozen
            policy role that starts from the actor's weights is that by itself under LoRA.
        path: where the model's weights come from, as ``model.path``; empty is the run's model.
        lr: learning rate of the model; None is that of the training engine's options.
        scorer: of kind ``score``: a registered reward, or ``file.py:function``; empty is the
            group of the role's name (``reward=…``, ``cost=…``), else the reward of the run.
    """

    name: str
    frozen: bool = False
    kind: RoleKind | Literal[""] = ""
    model: str = ""
    adapter: Literal["on", "off"] = "on"
    path: str = ""
    lr: float | None = None
    scorer: str = ""

    def __post_init__(self) -> None:
        if not self.name.isidentifier():
            raise ValueError(f"role name {self.name!r} is not an identifier")
        if not self.kind:
            kind: RoleKind = "policy"
            if self.name in _VALUE_ROLES:
                kind = "value"
            elif self.name in _SCORE_ROLES:
                kind = "score"
            object.__setattr__(self, "kind", kind)


@dataclass(frozen=True, slots=True)
class ComponentRef:
    """A component by name with its validated options: what travels to workers instead of code."""

    kind: str
    name: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.kind}={self.name}"


@dataclass(frozen=True, slots=True)
class Term:
    """One summand of an update's objective, Σ w·ℓ (DESIGN section 5).

    Args:
        loss: the name of a registered loss, or a reference to one with its options.
        coef: multiplies the term.
        weights: how tokens are weighted; None is the loss's own default.
        data: rows of its own (PTX, pairs); None is the batch of the update.
        options: options of the loss when it is given by name.
        length_norm: the constant length L of ``seq-mean-token-sum-norm``.
    """

    loss: "str | ComponentRef"
    coef: float = 1.0
    weights: WeightMode | None = None
    data: "Batch | None" = None
    options: Mapping[str, Any] = field(default_factory=dict)
    length_norm: float | None = None

    def reference(self) -> ComponentRef:
        """The loss as a reference."""
        if isinstance(self.loss, ComponentRef):
            return self.loss
        return ComponentRef("loss", self.loss, dict(self.options))


@dataclass(frozen=True, slots=True)
class Stat:
    """A metric that adds up over micro-batches, ranks and mini-batches without loss.

    ``mean`` metrics are (sum, count); ``max`` metrics keep the largest value in ``total``.
    """

    total: float
    count: float = 1.0
    how: Literal["mean", "max", "sum"] = "mean"

    def __add__(self, other: "Stat") -> "Stat":
        if self.how != other.how:
            raise ValueError(f"cannot add a {self.how} statistic to a {other.how} one")
        if self.how == "max":
            return Stat(max(self.total, other.total), 1.0, "max")
        return Stat(self.total + other.total, self.count + other.count, self.how)

    @property
    def value(self) -> float:
        """The number to report; NaN for a mean over nothing."""
        if self.how != "mean":
            return self.total
        return self.total / self.count if self.count else float("nan")


# --------------------------------------------------------------------------- tasks and rewards


@dataclass(frozen=True, slots=True)
class Problem:
    """One prompt of a task.

    Args:
        uid: unique within the task and stable over runs.
        prompt: plain text, or chat messages ``[{"role": …, "content": …}]``.
        answer: the reference answer as text, for rewards; empty when there is none.
        target: the text that supervised training imitates, and the chosen one of a pair; None when
            the task has none.
        rejected: the other text of a preference pair; None when the task has no pairs.
        extra: JSON values for rewards and environments. Pairs with safety labels have
            ``chosen_safe`` and ``rejected_safe`` (bool) here.
    """

    uid: str
    prompt: str | tuple[Mapping[str, str], ...]
    answer: str = ""
    target: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    rejected: str | None = None


@dataclass(frozen=True, slots=True)
class Sample:
    """What a reward sees of one response."""

    uid: str
    prompt: str
    response: str
    answer: str
    response_len: int
    truncated: bool
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Score:
    """A reward for one sample.

    Args:
        value: the number that is trained on.
        parts: named parts, logged as ``reward/<part>``.
        spans: (start, end, value) in response tokens, for process rewards.
    """

    value: float
    parts: Mapping[str, float] = field(default_factory=dict)
    spans: tuple[tuple[int, int, float], ...] = ()


@runtime_checkable
class Reward(Protocol):
    """Scores samples; None (or NaN) marks a sample invalid: out of statistics, no gradient.

    A reward whose scores have ``spans`` says so by an attribute ``spans = True``.
    """

    def __call__(self, samples: Sequence[Sample]) -> Sequence[Score | float | None]:
        """One entry for each sample, in order."""
        ...


@runtime_checkable
class Task(Protocol):
    """A source of problems with a held-out split that never occurs in training."""

    reward: str
    """Name of the registered reward that scores it by default."""
    max_tokens: int
    """Response tokens that an answer needs at most."""
    stop: tuple[str, ...]
    """Texts that end a response."""

    def problems(self, split: Literal["train", "eval"]) -> Sequence[Problem]:
        """All problems of a split, in a reproducible order."""
        ...


# --------------------------------------------------------------------------- learning


@dataclass(frozen=True, slots=True)
class ModelOutput:
    """What the current weights say about a micro-batch, with gradient.

    Args:
        logprobs: [b, T] of the response tokens at the sampling temperature, at least float32.
        entropy: [b, T] of the tempered distribution, when the loss asks for it.
        values: [b, T] of a value head, before each token.
        kl: [b, T] KL(policy || reference) over the whole vocabulary, of the tempered
            distributions, when the loss asks for it; the reference must be in the same processes.
    """

    logprobs: "Tensor | None" = None
    entropy: "Tensor | None" = None
    values: "Tensor | None" = None
    kl: "Tensor | None" = None

    def need(self, name: Literal["logprobs", "entropy", "values", "kl"]) -> "Tensor":
        """A field that the loss declares in the ``outputs`` of its options.

        Raises:
            ValueError: if it does not declare it, so that the engine did not make it.
        """
        found: Tensor | None = getattr(self, name)
        if found is None:
            raise ValueError(f"the engine made no {name!r}; declare it in the loss's `outputs`")
        return found


class Reduce(Protocol):
    """Global statistics over all rows of a batch, added in a fixed order."""

    def sum(self, x: "Tensor") -> "Tensor":
        """The elementwise sum of ``x`` over the shards."""
        ...

    def max(self, x: "Tensor") -> "Tensor":
        """The elementwise maximum of ``x`` over the shards."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class AdvantageOptions:
    """Base of an estimator's options: what it needs can be read without running it."""

    scope: ClassVar[Scope] = "sample"
    """Where it runs: ``sample`` on the controller's table, ``row`` on the shards, ``group`` on
    the shards after whole groups were brought together."""
    requires: ClassVar[frozenset[str]] = frozenset({"reward"})
    """Columns that it reads; one that nobody provides is an error at start."""
    provides: ClassVar[frozenset[str]] = frozenset({"advantages"})
    optional: ClassVar[frozenset[str]] = frozenset()
    """Columns that it reads where they are there."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LossOptions:
    """Base of a loss's options."""

    requires: ClassVar[frozenset[str]] = frozenset()
    """Columns that it reads; ``old_logprobs`` is filled in with the detached current ones where
    the batch has none, so that a single on-policy update needs no second forward pass."""
    optional: ClassVar[frozenset[str]] = frozenset()
    """Columns that it reads where they are there."""
    outputs: ClassVar[frozenset[str]] = frozenset({"logprobs"})
    """Fields of :class:`ModelOutput` that it needs."""
    default_weights: ClassVar[WeightMode] = "token-mean"
    unit: ClassVar[Literal["row", "group"]] = "row"
    """``row``: row i of the loss depends on row i only. ``group``: on the rows of its group, as
    in a loss of preference pairs; they then come in one micro-batch, numbered by ``group``."""
    selects: ClassVar[frozenset[str]] = frozenset()
    """Token columns that its ``prepare(x, reduce)`` makes once a step, without gradient, right
    after the advantages: for losses that choose tokens by comparing them over the batch. It reads
    the other columns of ``requires``, and ``row_key`` and ``valid`` where they are named."""
    corrected: ClassVar[bool] = False
    """True for policy losses: multiplied by the column ``token_weight`` that a correction makes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CorrectionOptions:
    """Base of a correction's options: importance weights and masks of tokens.

    A correction is called like an estimator of scope ``row``, right after it, and makes the token
    column ``token_weight``. Policy losses are multiplied by it, in the numerator only.
    """

    requires: ClassVar[frozenset[str]] = frozenset({"old_logprobs", "rollout_logprobs"})
    provides: ClassVar[frozenset[str]] = frozenset({"token_weight"})
    optional: ClassVar[frozenset[str]] = frozenset()


class Configured:
    """A component that keeps its options: the usual base of estimators, losses and rewards.

    Args:
        options: the frozen dataclass registered with it.
    """

    def __init__(self, options: Any) -> None:  # noqa: ANN401 - each has its own
        self.options = options


@runtime_checkable
class AdvantageEstimator(Protocol):
    """Turns rewards into advantages; built as ``target(options)``."""

    def __call__(
        self,
        x: "Rows",
        reduce: Reduce,
        **scalars: Any,  # noqa: ANN401 - numbers and names
    ) -> Mapping[str, "Tensor | Stat"]:
        """Columns by name: [B] is broadcast over the response, [B, T] is per token.

        ``scalars`` are what the algorithm passes: ``kl_coef`` and ``kl_kind`` where the KL to the
        reference is part of the reward (:func:`bestiary.kit.shaped_rewards` reads them).

        A :class:`Stat` is a metric under its name; ranks add theirs up.
        """
        ...


@runtime_checkable
class Correction(Protocol):
    """Weights tokens by how far the trainer's policy is from the one that sampled them.

    Built as ``target(options)``.
    """

    def __call__(self, x: "Rows", reduce: Reduce) -> Mapping[str, "Tensor | Stat"]:
        """The column ``token_weight`` ([B] or [B, T]) and metrics."""
        ...


@runtime_checkable
class Loss(Protocol):
    """A row-separable loss: row i of the result depends on row i of the input only.

    Built as ``target(options)``.
    """

    def __call__(self, now: ModelOutput, x: "Rows") -> tuple["Tensor", Mapping[str, Stat]]:
        """([b, T] loss of each token, statistics to log)."""
        ...


class PromptOrder(Protocol):
    """A walk over prompts, epoch after epoch, that can be saved."""

    @property
    def epoch(self) -> int:
        """The epoch of the last index that was taken."""
        ...

    def next(self, n: int) -> "NDArray[np.int64]":
        """The next ``n`` indices."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """The place in the walk, as JSON values."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved place."""
        ...


class Prompts(Protocol):
    """What samplers draw from: the prompts of the training split."""

    @property
    def uids(self) -> Sequence[str]:
        """The uid of each prompt."""
        ...

    @property
    def seed(self) -> int:
        """The run's seed."""
        ...

    def __len__(self) -> int: ...

    def order(self, *, shuffle: bool = True) -> PromptOrder:
        """A new walk over all prompts: a permutation an epoch from (seed, epoch)."""
        ...

    def hand_out(self, indices: "Sequence[int] | NDArray[np.int64]") -> "Batch":
        """The prompts at ``indices`` as a batch; each hand-out is a group of its own."""
        ...


@runtime_checkable
class Sampler(Protocol):
    """Chooses prompts, accepts or rejects groups, and learns from what came back.

    Built as ``target(options, source)`` with :class:`Prompts`. Options may name in ``requires``
    the columns that ``observe`` reads; one that nobody makes is then an error at start.
    """

    def draw(self, n: int) -> "Batch":
        """The next ``n`` prompts."""
        ...

    def accept(self, groups: "Batch") -> tuple["Batch", int]:
        """(the rows that are kept, how many more prompts to draw)."""
        ...

    def observe(self, batch: "Batch") -> None:
        """See a finished batch: pass rates, priorities."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on exactly here, as JSON values."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state."""
        ...


# --------------------------------------------------------------------------- handles of roles


class PolicyHandle(Protocol):
    """A role of kind ``policy`` as an algorithm sees it; calls return at once."""

    def generate(self, prompts: "Batch", sampling: Sampling | Sequence[Sampling]) -> "Batch":
        """Draw responses for each prompt; one engine call for all samplings."""
        ...

    def logprobs(self, batch: "Batch", into: str = "", *, probs_squared: bool = False) -> "Batch":
        """Log-probabilities of the responses, as a token column named ``into``.

        With ``probs_squared`` also the column of that name: Σ_a π(a)² of each token's
        distribution.
        """
        ...

    def update(self, batch: "Batch", *terms: Term) -> None:
        """One optimizer step on the sum of the terms."""
        ...


class ValueHandle(Protocol):
    """A role of kind ``value``."""

    def values(self, batch: "Batch", into: str = "values") -> "Batch":
        """The value before each response token.

        Also the sample column ``<into>_after``: the value after the last one, from which a
        truncated response can be bootstrapped.
        """
        ...

    def update(self, batch: "Batch", *terms: Term) -> None:
        """One optimizer step on the sum of the terms."""
        ...


class ScoreHandle(Protocol):
    """A role of kind ``score``."""

    def score(self, batch: "Batch", into: str = "") -> "Batch":
        """A number for each sample, in the sample column ``into`` (default: the role's name)."""
        ...

    def texts(self, batch: "Batch") -> list[str]:
        """The responses as text: for records and people, never for training."""
        ...


class Feed(Protocol):
    """Supervised rows beside the rollouts, as PTX needs them; endless, shuffled by epoch."""

    def next(self, n: int) -> "Batch":
        """The next ``n`` rows; their response is the problem's target."""
        ...


class AdvantageHandle(Protocol):
    """The chosen estimator, dispatched to where its scope says, and the chosen correction."""

    def __call__(self, batch: "Batch", **scalars: Any) -> "Batch":  # noqa: ANN401 - as there
        """The columns that the estimator and the correction provide."""
        ...


# --------------------------------------------------------------------------- algorithms


@dataclass(frozen=True, kw_only=True, slots=True)
class AlgorithmOptions:
    """Base of an algorithm's options: what it needs can be read without running it."""

    components: ClassVar[Mapping[str, str]] = {}
    """The components it uses unless the user chooses others, as in ``{"advantage": "group"}``."""
    trains_from: ClassVar[Literal["rollouts", "targets", "pairs"]] = "rollouts"
    """``targets`` for supervised algorithms, ``pairs`` for those that learn from preferences:
    problems without a target, or without a pair, are refused at start."""

    prompts: int = 32
    """Prompts drawn for each step."""

    def roles(self) -> tuple[Role, ...]:
        """The roles under these options, the first trained one first."""
        return (Role("actor"),)

    def samplings(self) -> tuple[Sampling, ...]:
        """What each rollout draws; ``max_tokens`` and ``stop`` come from the task when unset."""
        return ()

    def provides(self) -> frozenset[str]:
        """Columns that ``collect`` and ``learn`` make before the update."""
        return frozenset()

    def feeds(self) -> Mapping[str, str]:
        """Supervised data that it wants beside its prompts: name → task (empty: the run's)."""
        return {}


class Algorithm:
    """Two functions: ``collect`` makes data, ``learn`` trains on them.

    Before the first step the run sets these attributes: one handle under the name of each role,
    ``advantage`` (where the options name an estimator), ``loss`` (a reference to the chosen
    loss), ``sampling``, ``reads``, ``data``, ``prompts_from`` and ``metrics``.

    Args:
        options: the frozen dataclass registered with the algorithm.
        seed: the run's seed.
    """

    actor: PolicyHandle
    advantage: AdvantageHandle
    loss: ComponentRef
    sampling: tuple[Sampling, ...]
    metrics: Callable[[], dict[str, float]]
    """Everything that the updates since the last call reported, reduced to numbers."""
    reads: frozenset[str] = frozenset()
    """Columns that the chosen estimator, correction and sampler read."""
    data: Mapping[str, Feed]
    """What :meth:`AlgorithmOptions.feeds` asked for."""
    prompts_from: "Callable[[Batch, Sequence[str]], Batch]"
    """New prompts, one for each row of a batch, from texts: for judges. They carry the row's
    group as ``parent_uid``."""
    learned: "Batch | None" = None
    """The batch with the columns that ``learn`` made, for samplers that watch them."""

    def __init__(self, options: Any, seed: int) -> None:  # noqa: ANN401 - each has its own
        self.options = options
        self.seed = seed
        self.step = 0
        """The step that is being run, counted from 1; set by the schedule."""

    def collect(self, prompts: "Batch") -> "Batch":
        """Generate and score; group-separable, never writes ``self``."""
        raise TypeError(f"{type(self).__name__} does not define collect(prompts)")

    def learn(self, batch: "Batch") -> dict[str, float]:
        """Train on a batch of whole groups and return metrics."""
        raise TypeError(f"{type(self).__name__} does not define learn(batch)")

    def proximal(self, batch: "Batch", *, always: bool = False) -> "Batch":
        """Join ``old_logprobs``, the trainer's policy at the start of the step.

        Computed when ``always`` (several updates a step), or when the chosen estimator or
        correction reads the column; otherwise the update itself fills it in. Likewise
        ``probs_squared``, which comes with it.
        """
        squared = "probs_squared" in self.reads
        if always or squared or "old_logprobs" in self.reads:
            made = self.actor.logprobs(batch, into="old_logprobs", probs_squared=squared)
            return batch.join(made)
        return batch

    def evaluate(self, held_out: "Batch") -> Mapping[str, float] | None:
        """Metrics ``eval/…`` of the held-out problems; None generates and scores them."""
        return None

    def state_dict(self) -> dict[str, Any]:
        """State to be put into every checkpoint, as JSON values."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state."""


# --------------------------------------------------------------------------- records


@dataclass(frozen=True, slots=True)
class RunInfo:
    """What a tracker learns at the start of a run."""

    run_dir: "Path"
    name: str
    config: Mapping[str, Any]
    manifest: Mapping[str, Any]
    attempt: int = 1
    """Counts resumes; records of a later attempt replace those of an earlier one."""


@runtime_checkable
class Tracker(Protocol):
    """Receives records; one owner process writes."""

    def start(self, run: RunInfo) -> None:
        """Open; called once."""
        ...

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """One record for each step, in order; a repeated step replaces the earlier one."""
        ...

    def samples(self, step: int, rows: Iterable[Mapping[str, Any]]) -> None:
        """A few prompts with responses and rewards."""
        ...

    def finish(self, status: Literal["finished", "failed", "stopped"]) -> None:
        """Close; called once, also after a failure."""
        ...
