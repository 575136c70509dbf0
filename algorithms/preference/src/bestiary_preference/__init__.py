"""Learning from preference pairs, a member of the bestiary zoo."""

from bestiary import Registry, hookimpl


@hookimpl
def bestiary_register(registry: Registry) -> None:
    """Register the components by name; each is imported when chosen."""
    registry.algorithm(
        "reward_model",
        target="bestiary_preference.algorithm:PreferenceModel",
        options="bestiary_preference.options:RewardModelOptions",
    )
    registry.algorithm(
        "cost_model",
        target="bestiary_preference.algorithm:PreferenceModel",
        options="bestiary_preference.options:CostModelOptions",
    )
    registry.algorithm(
        "dpo",
        target="bestiary_preference.dpo:DPO",
        options="bestiary_preference.options:DPOOptions",
    )
    registry.algorithm(
        "online_dpo",
        target="bestiary_preference.dpo:OnlineDPO",
        options="bestiary_preference.options:OnlineDPOOptions",
    )
