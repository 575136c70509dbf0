"""The TensorBoard tracker: hook implementations only."""

from typing import Any

from bestiary import hookimpl


@hookimpl
def bestiary_register(registry: Any) -> None:  # noqa: ANN401 - the core's registry
    """Register the tracker ``tensorboard``."""
    registry.tracker(
        "tensorboard",
        target="bestiary_tensorboard.tracker:TensorBoardTracker",
        options="bestiary_tensorboard.options:TensorBoardOptions",
    )
