"""The loop of a run: steps from the schedule, evaluations, records and checkpoints."""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np

from bestiary.batch import Batch
from bestiary.dataflow.schedule import Done, Schedule
from bestiary.distributed.supervisor import supervisor
from bestiary.distributed.traffic import driver_bytes
from bestiary.errors import PluginError, WorkerFailure
from bestiary.evaluation.evaluate import Evaluation, eval_samplings, evaluate
from bestiary.plugins.events import Checkpoint as CheckpointEvent
from bestiary.plugins.events import Event, Rollout, RunEnd, RunStart, Step, WorkerFailed
from bestiary.protocols import RunInfo
from bestiary.roles.score import ScoreRole
from bestiary.runtime.checkpoint import Checkpoint, write_checkpoint
from bestiary.runtime.measure import batch_metrics, other_time, staleness, tokens_of
from bestiary.runtime.session import Session
from bestiary.tracking.display import Display
from bestiary.tracking.fanout import Trackers

if TYPE_CHECKING:
    from bestiary.roles.policy import PolicyRole

Status = Literal["finished", "failed", "stopped"]
SHOWN = 4
"""Samples of a training step that are recorded."""


@dataclass(slots=True)
class Progress:
    """What a run has done so far; saved in checkpoints."""

    step: int = 0
    tokens_generated: int = 0
    samples: int = 0
    seconds: float = 0.0
    attempt: int = 1
    last: dict[str, float] = field(default_factory=dict)


class Loop:
    """Runs a session to its end.

    Args:
        session: what was started.
        trackers: receive one record for each step.
        display: shows them.
        progress: where an earlier attempt stopped.
        made_by: what checkpoints record of this run.
    """

    def __init__(
        self,
        session: Session,
        trackers: Trackers,
        display: Display,
        progress: Progress,
        made_by: Mapping[str, Any],
    ) -> None:
        self.session = session
        self.trackers = trackers
        self.display = display
        self.progress = progress
        self.made_by = made_by
        self.saved: Checkpoint | None = None
        """The newest checkpoint in the folder of this run."""
        self._counted = driver_bytes()
        self._cpu_s = time.process_time()

    # ------------------------------------------------------------------ the run

    def run(self, schedule: Schedule, info: RunInfo) -> dict[str, float]:
        """All steps; returns the last metrics."""
        session, config = self.session, self.session.plan.run
        self._tell(RunStart(run=info))
        start, stop = self.progress.step, config.steps
        if start == 0 and config.eval.at_start:
            self._record(0, self._evaluate(0))
        began = time.perf_counter() - self.progress.seconds
        steps = schedule.run(
            session.algorithm,
            session.sampler,
            prompts=session.algorithm.options.prompts,
            start=start,
            stop=stop,
        )
        supervisor.set_context(step=start + 1)
        for done in steps:
            supervisor.set_context(step=done.step + 1)
            metrics = self._measure(done)
            late = config.max_seconds is not None
            over = late and time.perf_counter() - began >= cast("float", config.max_seconds)
            last = done.step == stop or over
            if last or (config.eval.every and done.step % config.eval.every == 0):
                metrics |= self._evaluate(done.step)
            self.progress.step = done.step
            self.progress.seconds = time.perf_counter() - began
            self._record(done.step, metrics)
            if config.checkpoint.every and done.step % config.checkpoint.every == 0:
                self.save()
            if last:
                break
        return self.progress.last

    def finish(self, status: Status, error: str = "") -> None:
        """Close the record; called once, also after a failure."""
        self._tell(RunEnd(status=status, step=self.progress.step, error=error))
        self.trackers.finish(status)
        self.display.finish(status)

    def failed(self, error: BaseException) -> None:
        """Tell observers of a worker failure."""
        if isinstance(error, WorkerFailure):
            self._tell(
                WorkerFailed(
                    step=self.progress.step + 1,
                    group=error.group,
                    rank=error.rank,
                    host=error.host,
                    cause=error.message.splitlines()[0],
                ),
            )

    # ------------------------------------------------------------------ one step

    def _measure(self, done: Done) -> dict[str, float]:
        batch = done.batch
        metrics = {**done.metrics, **self.session.services.ledger.drain()}
        policy = f"loss/{self.session.plan.choices['loss'].rpartition(':')[2]}"
        if policy in metrics:
            metrics["loss/policy"] = metrics.pop(policy)
        metrics |= batch_metrics(batch)
        metrics |= getattr(self.session.sampler, "metrics", dict)()
        total, response = tokens_of(batch)
        generated = "truncated" in batch
        self.progress.tokens_generated += response if generated else 0
        self.progress.samples += len(batch) if generated else 0
        version = self.version
        metrics |= {
            "version": float(version),
            "staleness/max": staleness(batch, version - 1) if "version_min" in batch else 0.0,
            "time/step_s": done.seconds,
            "time/other_s": other_time(metrics, done.seconds),
            "throughput/tokens_per_s": total / done.seconds,
            "data/tokens_generated": float(self.progress.tokens_generated),
            "data/samples": float(self.progress.samples),
            "driver/bytes": float(self._bytes()),
            "time/driver_cpu_s": self._cpu(),
        }
        seconds = metrics.get("time/rollout_s", 0.0)
        self._tell(
            Rollout(
                step=done.step,
                samples=len(batch),
                tokens=response,
                seconds=seconds,
                version=version,
            ),
        )
        self._show(done)
        return metrics

    @property
    def version(self) -> int:
        """Optimizer steps of the model that is trained first of all."""
        return int(self.session.models[self.session.primary].state()[0]["version"])

    def _bytes(self) -> int:
        before, self._counted = self._counted, driver_bytes()
        return self._counted - before

    def _cpu(self) -> float:
        """Processor seconds of this process since the last step."""
        before, self._cpu_s = self._cpu_s, time.process_time()
        return self._cpu_s - before

    def _record(self, step: int, metrics: Mapping[str, float]) -> None:
        self.progress.last = {**self.progress.last, **metrics}
        record = {"step": float(step), **metrics}
        self.trackers.log(step, record)
        self.display.log(step, record)
        self._tell(
            Step(
                step=step,
                version=int(metrics.get("version", 0)),
                metrics=dict(metrics),
                attempt=self.progress.attempt,
            ),
        )

    def _show(self, done: Done) -> None:
        every = self.session.plan.run.eval.every or 10
        if done.step != 1 and done.step % every:
            return
        rows = done.batch.trainable().take(np.arange(min(SHOWN, len(done.batch.trainable()))))
        if "reward" not in rows:
            return
        self._samples(done.step, describe_rows(rows, self.reward.texts(rows)))

    def _samples(self, step: int, rows: list[dict[str, Any]]) -> None:
        self.trackers.samples(step, rows)
        self.display.samples(step, rows)

    # ------------------------------------------------------------------ evaluation and state

    @property
    def reward(self) -> ScoreRole:
        """The scorer."""
        return cast("ScoreRole", self.session.handles["reward"])

    def _evaluate(self, step: int) -> dict[str, float]:
        began = time.perf_counter()
        self.display.phase("evaluating")
        found = evaluate_session(self.session)
        self.session.services.ledger.drain()
        write_answers(self.session.run_dir, step, found)
        return {**found.metrics, "time/eval_s": time.perf_counter() - began}

    def save(self) -> None:
        """Write a checkpoint of everything."""
        session, step = self.session, self.progress.step
        if self.saved is not None and self.saved.step == step:
            return
        self.display.phase("saving")

        def save_models(folder: Path) -> None:
            for name, model in session.models.items():
                if session.trainable(name):
                    (folder / name).mkdir()
                    model.group.run("save", name, str(folder / name))

        self.trackers.sync()
        self.saved = write_checkpoint(
            session.run_dir / "checkpoints",
            step,
            {**session.state_dict(), "made_by": self.made_by, "progress": vars_of(self.progress)},
            save_models,
            keep=session.plan.run.checkpoint.keep,
        )
        self._tell(CheckpointEvent(step=step, path=self.saved.path))

    def _tell(self, event: Event) -> None:
        self.session.components.plugins.observe(event)


def vars_of(progress: Progress) -> dict[str, Any]:
    """Progress as JSON values."""
    return {
        "step": progress.step,
        "tokens_generated": progress.tokens_generated,
        "samples": progress.samples,
        "seconds": progress.seconds,
        "attempt": progress.attempt,
    }


def evaluate_session(session: Session, *, show: int = 16) -> Evaluation:
    """Evaluate on the held-out problems: as the algorithm does it, else by generating.

    Streams never change, so that evaluations of a run can be compared.
    """
    own = session.algorithm.evaluate(session.prompts.held_out)
    if own is not None:
        return Evaluation(dict(own), [])
    config = session.plan.run.eval
    missing = [name for name in ("actor", "reward") if name not in session.handles]
    if missing:
        ref = session.plan.reference("algorithm")
        raise PluginError(
            f"{ref} has no role '{missing[0]}', so held-out problems cannot be evaluated",
            hint='add Role("reward", frozen=True) to roles(), or write evaluate(held_out)',
            owner=session.components.owner(ref),
        )
    actor = cast("PolicyRole", session.handles["actor"]).for_purpose("eval")
    reward = cast("ScoreRole", session.handles["reward"])
    samplings = eval_samplings(session.samplings[0], config.samples, greedy=config.greedy)
    others = {
        name: handle
        for name, handle in session.handles.items()
        if isinstance(handle, ScoreRole) and name != "reward"
    }
    return evaluate(actor, reward, session.prompts.held_out, samplings, others=others, show=show)


def write_answers(run_dir: Path, step: int, found: Evaluation) -> None:
    """Keep the answers that an evaluation showed: ``RUN/samples/eval_N.json``."""
    folder = run_dir / "samples"
    folder.mkdir(exist_ok=True)
    content = {"step": step, "metrics": found.metrics, "answers": found.answers}
    (folder / f"eval_{step}.json").write_text(json.dumps(content, indent=1, ensure_ascii=False))


def describe_rows(rows: Batch, texts: list[str]) -> list[dict[str, Any]]:
    """Rows of a batch as a person reads them."""
    return [
        {
            "uid": str(rows["uid"][i]),
            "prompt": str(rows["prompt"][i]),
            "response": texts[i],
            "answer": str(rows["answer"][i]),
            "reward": float(rows["reward"][i]),
            "response_len": int(rows["response_len"][i]),
        }
        for i in range(len(rows))
    ]
