"""The Weights & Biases tracker: hook implementations only."""

from typing import Any

from bestiary import hookimpl


@hookimpl
def bestiary_register(registry: Any) -> None:  # noqa: ANN401 - the core's registry
    """Register the tracker ``wandb``."""
    registry.tracker(
        "wandb",
        target="bestiary_wandb.tracker:WandbTracker",
        options="bestiary_wandb.options:WandbOptions",
    )
