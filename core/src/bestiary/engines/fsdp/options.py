"""Options of the training engine; light, so that a configuration is checked without torch."""

import math
from dataclasses import dataclass
from typing import Literal

Schedule = Literal["constant", "linear", "cosine"]
_ONE_OF = "must be one of constant, linear, cosine"


@dataclass(frozen=True, kw_only=True, slots=True)
class LoRAOptions:
    """Adapters on frozen base weights (Hu et al. 2022, arXiv:2106.09685).

    Without dropout: log-probabilities must be those of the policy that sampled.
    """

    rank: int = 16
    """Rank r of the adapters."""
    alpha: int = 32
    """Their scale is alpha / rank."""
    targets: tuple[str, ...] = ("all-linear",)
    """Linear layers that get one, by the end of their names, as in ``[q_proj,v_proj]``;
    ``all-linear`` is all but the output layer."""
    seed: int = 0
    """Of their initial weights."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "targets", tuple(self.targets))
        if self.rank < 1 or not self.alpha > 0 or not self.targets:
            raise ValueError(
                f"lora rank={self.rank} alpha={self.alpha} targets={self.targets}: rank must be "
                "at least 1, alpha above 0, and targets must not be empty"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class FSDPOptions:
    """How one model is trained."""

    lr: float = 1e-6
    """Peak learning rate of AdamW."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Decay of AdamW's first and second moment."""
    eps: float = 1e-8
    """Added to the root of the second moment."""
    weight_decay: float = 0.0
    """Decoupled weight decay, on every parameter."""
    clip_norm: float = 1.0
    """Largest global gradient norm; larger gradients are scaled down to it. 0 does not clip."""
    warmup_steps: int = 0
    """Optimizer steps over which the learning rate rises linearly from 0."""
    lr_schedule: Schedule = "constant"
    """What the learning rate does after the warm-up; linear and cosine reach 0 at total_steps."""
    total_steps: int = 0
    """Optimizer steps of the whole run; needed by the linear and cosine schedules."""
    shard: Literal["full", "none"] = "none"
    """``full`` shards weights, gradients and optimizer over the ranks (FSDP2, for each decoder
    layer and the rest); ``none`` replicates them and adds gradients in one all-reduce, which is
    faster for small models. Numbers agree. On one rank both are the same."""
    tokens_per_micro: int = 2048
    """Token budget of a micro-batch; a row above it gets a micro-batch of its own."""
    activation_checkpointing: bool = False
    """Recompute each decoder layer in the backward pass instead of keeping its activations."""
    packing: Literal["packed", "padded"] = "packed"
    """``packed`` runs linear layers on real tokens only and stores each prompt once for all its
    responses; ``padded`` is the plain right-padded forward pass, the reference. Architectures
    that packing does not cover use ``padded`` by themselves, with a note in the log."""
    fast_linear: bool = True
    """On CPU in float32, use oneDNN for linear layers and add weight gradients in place; numbers
    agree to rounding."""
    logits_chunk: int = 1 << 24
    """Elements of logits held at once; above it they are recomputed in the backward pass."""
    lora: LoRAOptions | None = None
    """Train adapters instead of all weights: ``train_engine.lora.rank=16``, or ``{}`` for the
    defaults. A reference then is the actor without its adapter. Weights are merged in float32 for
    generation."""
    max_skipped: int = 3
    """Steps in a row that may be skipped because of a gradient that is not finite."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "betas", tuple(self.betas))
        self._check("lr", math.isfinite(self.lr) and self.lr >= 0, "must be finite and at least 0")
        pair = len(self.betas) == 2 and all(0 <= b < 1 for b in self.betas)
        self._check("betas", pair, "must be two numbers in [0, 1)")
        self._check("eps", self.eps > 0, "must be above 0")
        self._check("weight_decay", self.weight_decay >= 0, "must be at least 0")
        self._check("clip_norm", self.clip_norm >= 0, "must be at least 0 (0 does not clip)")
        self._check("warmup_steps", self.warmup_steps >= 0, "must be at least 0")
        self._check("lr_schedule", self.lr_schedule in ("constant", "linear", "cosine"), _ONE_OF)
        enough = self.lr_schedule == "constant" or self.total_steps > self.warmup_steps
        self._check(
            "total_steps",
            enough,
            f"must be above warmup_steps={self.warmup_steps} for lr_schedule={self.lr_schedule}",
        )
        self._check("shard", self.shard in ("full", "none"), "is neither 'full' nor 'none'")
        self._check("tokens_per_micro", self.tokens_per_micro >= 1, "must be at least 1")
        self._check("packing", self.packing in ("packed", "padded"), "is not 'packed' or 'padded'")
        self._check("logits_chunk", self.logits_chunk >= 1, "must be at least 1")
        self._check("max_skipped", self.max_skipped >= 0, "must be at least 0")

    def _check(self, name: str, fine: bool, wanted: str) -> None:
        if not fine:
            raise ValueError(f"train_engine {name}={getattr(self, name)!r}: {wanted}")

    def lr_at(self, step: int) -> float:
        """The learning rate of optimizer step ``step``, counted from 1."""
        if step <= self.warmup_steps:
            return self.lr * step / self.warmup_steps
        if self.lr_schedule == "constant":
            return self.lr
        done = (step - 1 - self.warmup_steps) / (self.total_steps - self.warmup_steps)
        done = min(max(done, 0.0), 1.0)
        if self.lr_schedule == "linear":
            return self.lr * (1.0 - done)
        return self.lr * 0.5 * (1.0 + math.cos(math.pi * done))
