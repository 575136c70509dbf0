"""Safe RLHF (PPO-Lagrangian), a member of the bestiary zoo."""

from bestiary import Registry, hookimpl


@hookimpl
def bestiary_register(registry: Registry) -> None:
    """Register the components by name; each is imported when chosen."""
    registry.algorithm(
        "safe_rlhf",
        target="bestiary_safe_rlhf.algorithm:SafeRLHF",
        options="bestiary_safe_rlhf.options:SafeRLHFOptions",
    )
    registry.advantage(
        "lagrangian",
        target="bestiary_safe_rlhf.advantage:Lagrangian",
        options="bestiary_safe_rlhf.options:LagrangianOptions",
    )
