"""Options of the test plugin, with every kind of field that a configuration can express."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplerOptions:
    mode: Literal["epoch", "replace"] = "epoch"


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineOptions:
    max_batch_tokens: int = 4096
    stop: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Decay:
    kind: Literal["constant", "linear"] = "constant"
    warmup: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainOptions:
    lr: float = 1e-5
    """Step size."""
    betas: tuple[float, float] = (0.9, 0.95)
    clip: float | None = 1.0
    """Largest gradient norm; null does not clip."""
    decay: Decay = field(default_factory=Decay)
    extra: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self):
        if not self.lr > 0:
            raise ValueError(f"train_engine.lr={self.lr}: must be above 0")


@dataclass(frozen=True, kw_only=True, slots=True)
class PlacementOptions:
    workers: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class BoardOptions:
    project: str = "zoo"
    api_key: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class ExactOptions:
    strip: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskOptions:
    digits: int = 2
    template: str = "What is ${a} + ${b}?"
