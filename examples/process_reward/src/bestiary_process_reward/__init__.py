"""Process rewards: a scorer that judges parts of a response, an estimator and an algorithm."""

from bestiary import Registry, hookimpl


@hookimpl
def bestiary_register(registry: Registry) -> None:
    """Register the components."""
    registry.reward("right_characters", target="bestiary_process_reward.parts:RightCharacters")
    registry.advantage(
        "steps_to_go",
        target="bestiary_process_reward.parts:StepsToGo",
        options="bestiary_process_reward.options:StepsToGoOptions",
    )
    registry.algorithm(
        "process_reward",
        target="bestiary_process_reward.algorithm:ProcessReward",
        options="bestiary_process_reward.options:ProcessRewardOptions",
    )
