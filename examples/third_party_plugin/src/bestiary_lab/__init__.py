"""The plugin as the core sees it: three names, imported when chosen."""

from bestiary import Registry, hookimpl


@hookimpl
def bestiary_register(registry: Registry) -> None:
    """Register the components."""
    options = "bestiary_lab.options:ReinforceOptions"
    registry.algorithm("lab_reinforce", target="bestiary_lab.learning:Reinforce", options=options)
    registry.advantage("lab_median", target="bestiary_lab.learning:Median")
    options = "bestiary_lab.options:HardestOptions"
    registry.sampler("lab_hardest", target="bestiary_lab.sampler:Hardest", options=options)
