"""A plugin for tests: algorithms, estimators and losses."""

from bestiary import hookimpl


def register(registry, prefix=""):
    def add(kind, name, options, target="Algo"):
        options = f"Prefixed{options}" if prefix and kind == "algorithm" else options
        getattr(registry, kind)(
            prefix + name,
            target=f"zoo_algos.parts:{target}",
            options=f"zoo_algos.options:{options}",
        )

    add("algorithm", "grpo", "GrpoOptions")
    add("algorithm", "remax", "RemaxOptions")
    add("algorithm", "sft", "SftOptions")
    add("advantage", "group", "GroupOptions")
    add("advantage", "greedy", "GreedyOptions")
    add("advantage", "gae", "GaeOptions")
    add("loss", "clip", "ClipOptions")
    add("loss", "nll", "NllOptions")


@hookimpl
def bestiary_register(registry):
    register(registry, "zoo_")
