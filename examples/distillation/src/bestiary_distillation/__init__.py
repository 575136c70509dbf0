"""On-policy distillation: an algorithm and a loss."""

from bestiary import Registry, hookimpl


@hookimpl
def bestiary_register(registry: Registry) -> None:
    """Register the components."""
    registry.algorithm(
        "distillation",
        target="bestiary_distillation.algorithm:Distillation",
        options="bestiary_distillation.options:DistillationOptions",
    )
    registry.loss(
        "reverse_kl",
        target="bestiary_distillation.algorithm:ReverseKL",
        options="bestiary_distillation.options:ReverseKLOptions",
    )
