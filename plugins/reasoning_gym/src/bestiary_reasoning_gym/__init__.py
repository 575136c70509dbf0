"""Tasks of reasoning-gym and their verifiers."""

from bestiary import Registry, hookimpl


@hookimpl
def bestiary_register(registry: Registry) -> None:
    """Register the task and its reward under one name; they are imported when chosen."""
    registry.task(
        "reasoning_gym",
        target="bestiary_reasoning_gym.task:ReasoningGym",
        options="bestiary_reasoning_gym.options:ReasoningGymOptions",
    )
    registry.reward(
        "reasoning_gym",
        target="bestiary_reasoning_gym.reward:VerifierReward",
        options="bestiary_reasoning_gym.options:VerifierOptions",
    )
