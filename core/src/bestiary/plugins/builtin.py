"""The plugin that the core itself is: its components register like those of any other.

It is always loaded and cannot be blocked.
"""

from bestiary.plugins.markers import hookimpl
from bestiary.plugins.registry import Registry


@hookimpl
def bestiary_register(registry: Registry) -> None:
    """Register the core's own components by name; each is imported when chosen."""
    registry.train_engine(
        "fsdp",
        target="bestiary.engines.fsdp.engine:FSDPEngine",
        options="bestiary.engines.fsdp.options:FSDPOptions",
    )
    registry.rollout_engine(
        "local",
        target="bestiary.engines.local.engine:LocalEngine",
        options="bestiary.engines.local.options:LocalOptions",
    )
    for placement, strategy in (
        ("colocate", "Colocate"),
        ("inprocess", "Colocate"),
        ("split", "Split"),
        ("standalone", "Standalone"),
        ("explicit", "Explicit"),
    ):
        registry.placement(
            placement,
            target=f"bestiary.distributed.strategies:{strategy}",
            options=f"bestiary.distributed.options:{strategy}Options",
        )
    registry.schedule(
        "sync",
        target="bestiary.dataflow.schedule:Sync",
        options="bestiary.dataflow.options:SyncOptions",
    )
    registry.task(
        "jsonl",
        target="bestiary.data.task:FileTask",
        options="bestiary.data.task:FileTaskOptions",
    )
    for reward, target, options in (
        ("exact_match", "text:ExactMatch", "ExactMatchOptions"),
        ("last_number", "text:LastNumber", "LastNumberOptions"),
        ("format", "text:Format", "FormatOptions"),
        ("custom", "custom:CustomReward", "CustomOptions"),
        ("sum", "combined:SumReward", "SumOptions"),
    ):
        registry.reward(
            reward,
            target=f"bestiary.rewards.{target}",
            options=f"bestiary.rewards.options:{options}",
        )
