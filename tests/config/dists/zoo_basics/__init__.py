"""A plugin for tests: everything that a run needs besides an algorithm."""

from bestiary import hookimpl

OPTIONS = "zoo_basics.options"


def register(registry, prefix=""):
    """Register under plain names, or with a prefix next to installed members."""

    def add(kind, name, target, options=None):
        getattr(registry, kind)(
            prefix + name,
            target=f"zoo_basics.parts:{target}",
            options=None if options is None else f"{OPTIONS}:{options}",
        )

    add("sampler", "uniform", "Part", "SamplerOptions")
    add("rollout_engine", "local", "Part", "EngineOptions")
    add("train_engine", "fsdp", "Part", "TrainOptions")
    add("schedule", "sync", "Part")
    add("placement", "colocate", "Part", "PlacementOptions")
    add("tracker", "board", "Part", "BoardOptions")
    add("tracker", "wire", "Part")
    add("reward", "exact", "Part", "ExactOptions")
    add("task", "addition", "Addition" if not prefix else "PrefixedAddition", "TaskOptions")
    add("task", "riddles", "Riddles")


@hookimpl
def bestiary_register(registry):
    register(registry, "zoo_")
