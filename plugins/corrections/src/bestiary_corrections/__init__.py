"""Corrections for samples of another policy; each is a component of its own."""

from bestiary import Registry, hookimpl


@hookimpl
def bestiary_register(registry: Registry) -> None:
    """Register each correction by name; it is imported when chosen."""
    for name, target, options in (
        ("tis", "TIS", "TISOptions"),
        ("icepop", "Reject", "IcePopOptions"),
        ("geometric_mask", "Reject", "GeometricMaskOptions"),
        ("reject", "Reject", "RejectOptions"),
    ):
        registry.correction(
            name,
            target=f"bestiary_corrections.corrections:{target}",
            options=f"bestiary_corrections.options:{options}",
        )
