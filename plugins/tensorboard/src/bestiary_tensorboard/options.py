"""Options of the tracker ``tensorboard``; light, imports no tensorboard."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorBoardOptions:
    """Where the events go."""

    folder: str = "tensorboard"
    """Folder for the events, relative to the run folder."""
    flush_s: float = 10.0
    """Seconds between writes to the disk."""

    def __post_init__(self) -> None:
        if not self.flush_s > 0.0:
            raise ValueError(f"tensorboard flush_s={self.flush_s}: must be above 0 seconds")
        if not self.folder:
            raise ValueError("tensorboard folder is empty: a name is needed")
