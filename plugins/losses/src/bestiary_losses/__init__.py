"""Losses that many algorithms share; each is a component of its own."""

from bestiary import Registry, hookimpl


@hookimpl
def bestiary_register(registry: Registry) -> None:
    """Register each loss by name; it is imported when chosen."""
    for name, cls in (
        ("clip", "Clip"),
        ("entropy", "Entropy"),
        ("kl", "KL"),
        ("nll", "NLL"),
        ("value", "Value"),
    ):
        registry.loss(
            name,
            target=f"bestiary_losses.losses:{cls}",
            options=f"bestiary_losses.options:{cls}Options",
        )
