"""HybridEngine: a training engine and a rollout engine of one model, and the way between them."""

import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from bestiary.engines.checksum import Checksum
from bestiary.engines.engine_api import Residency, RolloutEngine, TrainEngine
from bestiary.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

_log = logging.getLogger(__name__)

Policy = Literal["keep", "offload"]

KEEP = Residency()
OFFLOAD_TRAINING = Residency(gradients="freed", optimizer="host")
FREE_CACHE = Residency(kv="freed")


@dataclass(frozen=True, slots=True)
class Transition:
    """One passage from training to generation or back.

    Args:
        to: the phase that it leads to.
        version: policy version that generation has after it.
        seconds: that it took on this rank.
        moved_bytes: weights that were written to the rollout engine.
        residency: what each engine says about the parts that it moved or freed.
    """

    to: Literal["generation", "training"]
    version: int
    seconds: float
    moved_bytes: int = 0
    residency: Mapping[str, Any] = field(default_factory=dict)


class HybridEngine:
    """The two engines of one model on one rank.

    A rollout engine can only be had inside :meth:`generation`, where its weights are those of the
    trainer: it is brought to the trainer's version first, and what it draws carries that version.
    A transfer that fails or is cut off leaves it without weights, never with a mixture.

    Args:
        train: owns the weights.
        rollout: makes the engine that generates, on first use: a model that never generates has
            none.
        policy: ``offload`` frees gradients and moves the optimizer to the host while generating,
            and frees the KV cache while training; ``keep`` leaves everything where it is.
        keep_name: which parameters generation needs; None is all.
    """

    def __init__(
        self,
        train: TrainEngine,
        rollout: "Callable[[], RolloutEngine]",
        *,
        policy: Policy = "keep",
        keep_name: "Callable[[str], bool] | None" = None,
    ) -> None:
        self.train = train
        self.policy: Policy = policy
        self.transitions: list[Transition] = []
        """Since they were last taken away, oldest first."""
        self._make = rollout
        self._keep_name = keep_name or (lambda name: True)
        self._rollout: RolloutEngine | None = None
        self._generating = False

    @property
    def generating(self) -> bool:
        """Whether a block of :meth:`generation` is open."""
        return self._generating

    @contextmanager
    def generation(self) -> Iterator[RolloutEngine]:
        """The rollout engine with the trainer's weights of now.

        Raises:
            EngineError: inside another such block, or when the weights did not arrive.
        """
        if self._generating:
            raise EngineError("generation() is open already; leave it before entering it again")
        self._generating = True
        try:
            yield self._enter()
        finally:
            self._generating = False
            self._leave()

    def require_training(self, what: str) -> None:
        """Refuse an update while generation is open: the optimizer may be elsewhere.

        Raises:
            EngineError: naming what was tried.
        """
        if self._generating:
            raise EngineError(
                f"{what} inside generation(): its weights would change under the sampler",
                hint="leave the block first",
            )

    def forget_weights(self) -> None:
        """Make the next block send the weights again: the trainer's were replaced from outside.

        The version alone does not tell, since a checkpoint may bring the same one back.

        Raises:
            EngineError: while generation is open.
        """
        self.require_training("loading weights")
        self._rollout = None

    # ------------------------------------------------------------------ the way there

    def _enter(self) -> RolloutEngine:
        began = time.perf_counter()
        if self._rollout is None:
            self._rollout = self._make()
        moved: dict[str, Any] = {}
        if self.policy == "offload":
            moved["train"] = _move(self.train, OFFLOAD_TRAINING)
        sent = 0
        if self._rollout.version != self.train.version:
            sent = self._send(self._rollout)
        if self._rollout.version != self.train.version:
            raise EngineError(
                f"the rollout engine says version {self._rollout.version} after it was sent "
                f"version {self.train.version}",
                hint="commit() must take the version that prepare() announced",
            )
        seconds = time.perf_counter() - began
        self._note(Transition("generation", self.train.version, seconds, sent, moved))
        return self._rollout

    def _send(self, engine: RolloutEngine) -> int:
        """Write the trainer's weights; returns their bytes."""
        engine.prepare(self.train.version)
        checksum, sent = Checksum(), 0
        for bucket in self.train.export():
            wanted: dict[str, Tensor] = {n: t for n, t in bucket.items() if self._keep_name(n)}
            for name, tensor in wanted.items():
                checksum.add(name, tensor)
                sent += tensor.numel() * tensor.element_size()
            engine.write(wanted)
        engine.commit(checksum.hexdigest())
        return sent

    # ------------------------------------------------------------------ the way back

    def _leave(self) -> None:
        if self.policy == "keep" or self._rollout is None:
            return
        began = time.perf_counter()
        moved = {
            "rollout": self._rollout.residency(FREE_CACHE),
            "train": _move(self.train, KEEP),
        }
        seconds = time.perf_counter() - began
        self._note(Transition("training", self.train.version, seconds, residency=moved))

    def _note(self, passage: Transition) -> None:
        """Keep a passage, and log it with its bytes."""
        self.transitions.append(passage)
        _log.info(
            "to %s: version %d, %d bytes of weights in %.3f s%s",
            passage.to,
            passage.version,
            passage.moved_bytes,
            passage.seconds,
            f", {dict(passage.residency)}" if passage.residency else "",
        )

    def take_transitions(self) -> list[Transition]:
        """The passages since the last call."""
        taken, self.transitions = self.transitions, []
        return taken


def _move(engine: TrainEngine, want: Residency) -> Mapping[str, Any]:
    """Ask an engine that can move its parts; others keep them on the device."""
    move = getattr(engine, "residency", None)
    found: Mapping[str, Any] = {} if move is None else move(want)
    return found
