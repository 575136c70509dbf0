"""Small tasks that need no data."""

from bestiary import Registry, hookimpl


@hookimpl
def bestiary_register(registry: Registry) -> None:
    """Register each task and reward by name; it is imported when chosen."""
    for name, target, options in (
        ("addition", "addition:Addition", "AdditionOptions"),
        ("tradeoff", "tradeoff:Tradeoff", "TradeoffOptions"),
        ("preferences", "tradeoff:Preferences", "PreferencesOptions"),
    ):
        registry.task(
            name, target=f"bestiary_tasks.{target}", options=f"bestiary_tasks.options:{options}"
        )
    for name, target in (("tradeoff_reward", "ShareOfA"), ("tradeoff_cost", "SquaredShareOfA")):
        registry.reward(
            name,
            target=f"bestiary_tasks.tradeoff:{target}",
            options="bestiary_tasks.options:ShareOptions",
        )
