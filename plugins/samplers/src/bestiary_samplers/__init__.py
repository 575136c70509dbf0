"""Samplers of prompts; each is a component of its own."""

from bestiary import Registry, hookimpl


@hookimpl
def bestiary_register(registry: Registry) -> None:
    """Register each sampler by name; it is imported when chosen."""
    registry.sampler(
        "uniform",
        target="bestiary_samplers.uniform:Uniform",
        options="bestiary_samplers.options:UniformOptions",
    )
    registry.sampler(
        "dynamic",
        target="bestiary_samplers.dynamic:Dynamic",
        options="bestiary_samplers.options:DynamicOptions",
    )
    registry.sampler(
        "curriculum",
        target="bestiary_samplers.curriculum:Curriculum",
        options="bestiary_samplers.options:CurriculumOptions",
    )
