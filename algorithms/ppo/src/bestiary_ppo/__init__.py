"""Proximal policy optimisation with a critic, a member of the bestiary zoo."""

from bestiary import Registry, hookimpl


@hookimpl
def bestiary_register(registry: Registry) -> None:
    """Register the algorithms by name; each is imported when chosen."""
    for name, target, options in (("ppo", "PPO", "PPOOptions"),):
        registry.algorithm(
            name,
            target=f"bestiary_ppo.algorithm:{target}",
            options=f"bestiary_ppo.options:{options}",
        )
