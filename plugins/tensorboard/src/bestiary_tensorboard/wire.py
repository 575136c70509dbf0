"""The parts of tensorboard that are used, in one place; loaded when a run starts."""

# tensorboard ships no type information, hence one ignore for each of its modules
from tensorboard.compat.proto.event_pb2 import Event, SessionLog  # type: ignore[import-untyped]
from tensorboard.compat.proto.summary_pb2 import Summary  # type: ignore[import-untyped]
from tensorboard.plugins.text.summary_v2 import text_pb  # type: ignore[import-untyped]
from tensorboard.summary.writer.event_file_writer import (  # type: ignore[import-untyped]
    EventFileWriter,
)

__all__ = ["Event", "EventFileWriter", "SessionLog", "Summary", "text_pb"]
