"""The tracker ``tensorboard``: event files by TensorBoard's own writer, without TensorFlow."""

import json
import time
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from bestiary.protocols import RunInfo
from bestiary_tensorboard.options import TensorBoardOptions


class TensorBoardTracker:
    """Writes a run as TensorBoard events.

    Args:
        options: where the events go.
    """

    def __init__(self, options: TensorBoardOptions) -> None:
        self.options = options
        self._writer: Any = None  # EventFileWriter, whose module is imported in start
        self._restart = False

    def start(self, run: RunInfo) -> None:
        """Open an event file; its first events are the configuration and the fingerprint."""
        from bestiary_tensorboard import wire

        folder = run.run_dir / self.options.folder
        self._writer = wire.EventFileWriter(str(folder), flush_secs=self.options.flush_s)
        self._restart = run.attempt > 1
        if not self._restart:
            self._text(0, "config", _code(run.config))
            fingerprint = run.manifest.get("fingerprint", run.manifest.get("plugins"))
            if fingerprint is not None:
                self._text(0, "fingerprint", _code(fingerprint))

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write one event with a scalar for each metric."""
        from bestiary_tensorboard import wire

        self._mark_restart(step)
        values = [
            wire.Summary.Value(tag=name, simple_value=float(value))
            for name, value in sorted(metrics.items())
        ]
        self._event(step, summary=wire.Summary(value=values))

    def samples(self, step: int, rows: Iterable[Mapping[str, Any]]) -> None:
        """Write the rows as one markdown table."""
        table = [dict(row) for row in rows]
        if table:
            self._mark_restart(step)
            self._text(step, "samples", _markdown(table))

    def finish(self, status: Literal["finished", "failed", "stopped"]) -> None:
        """Bring all events to the disk and end the writer's thread."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()

    def _mark_restart(self, step: int) -> None:
        """Tell TensorBoard, once, that events of earlier attempts from ``step`` on are void."""
        if self._restart:
            from bestiary_tensorboard import wire

            self._restart = False
            self._event(step, session_log=wire.SessionLog(status=wire.SessionLog.START))

    def _text(self, step: int, tag: str, text: str) -> None:
        from bestiary_tensorboard import wire

        self._event(step, summary=wire.text_pb(tag, text))

    def _event(self, step: int, **what: Any) -> None:  # noqa: ANN401 - one field of the message
        from bestiary_tensorboard import wire

        self._writer.add_event(wire.Event(step=step, wall_time=time.time(), **what))


def _code(value: object) -> str:
    text = json.dumps(value, indent=2, sort_keys=True, default=str)
    return "\n".join(f"    {line}" for line in text.splitlines())


def _markdown(rows: list[dict[str, Any]]) -> str:
    columns = list(dict.fromkeys(name for row in rows for name in row))
    lines = [columns, ["---"] * len(columns)]
    lines += [[_cell(row.get(name)) for name in columns] for row in rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _cell(value: object) -> str:
    text = "" if value is None else str(value)
    return text.replace("|", "\\|").replace("\n", "⏎")
