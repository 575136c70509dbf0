"""A component by name: imported, checked and built when it is chosen, never before."""

import dataclasses
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, get_args

from bestiary.errors import Owner, PluginError, boundary
from bestiary.plugins.names import did_you_mean, normalise

if TYPE_CHECKING:
    from collections.abc import Mapping

Kind = Literal[
    "algorithm",
    "advantage",
    "correction",
    "loss",
    "sampler",
    "reward",
    "task",
    "rollout_engine",
    "train_engine",
    "tracker",
    "schedule",
    "placement",
    "replay",
]
KINDS: tuple[str, ...] = get_args(Kind)

_BASES: "Mapping[str, str]" = {
    "algorithm": "AlgorithmOptions",
    "advantage": "AdvantageOptions",
    "correction": "CorrectionOptions",
    "loss": "LossOptions",
}
"""Class of :mod:`bestiary.protocols` that the options of a kind derive from."""

_MEMBERS: "Mapping[str, tuple[str, ...]]" = {
    "algorithm": ("collect", "learn", "state_dict", "load_state_dict"),
    "advantage": ("__call__",),
    "correction": ("__call__",),
    "loss": ("__call__",),
    "reward": ("__call__",),
    "sampler": ("draw", "accept", "observe", "state_dict", "load_state_dict"),
    "task": ("problems", "reward", "max_tokens", "stop"),
    "rollout_engine": ("prepare", "write", "commit", "generate", "residency"),
    "train_engine": ("forward", "update", "export", "save", "load"),
    "tracker": ("start", "log", "samples", "finish"),
}
"""What an object of a kind must have, after its face in :mod:`bestiary.protocols`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NoOptions:
    """Options of a component that was registered without any."""


@dataclass(frozen=True, slots=True)
class Component:
    """Something that a plugin offers under a name.

    Args:
        kind: one of ``KINDS``.
        name: what users choose it by.
        target: ``module:attribute`` of the class or factory.
        options: ``module:attribute`` of the frozen dataclass of its options; None for no options.
        owner: plugin, distribution and version that registered it.
    """

    kind: str
    name: str
    target: str
    options: str | None
    owner: Owner

    def __str__(self) -> str:
        return f"{self.kind} '{self.name}'"

    @property
    def qualified(self) -> str:
        """``distribution:name``, which chooses it also where another has the same name."""
        return f"{normalise(self.owner.distribution)}:{self.name}"

    def load(self) -> Any:  # noqa: ANN401 - a class or factory of the plugin
        """Import the target.

        Raises:
            PluginError: if the module or attribute is missing, its import fails, or it cannot be
                called.
        """
        found = _resolve(self.target, self.owner, f"{self}, target")
        if not callable(found):
            raise PluginError(
                f"{self}, target {self.target!r}: a class or factory is needed, this is a "
                f"{type(found).__name__}",
                hint="correct the target where the plugin registers it",
                owner=self.owner,
            )
        return found

    def options_class(self) -> type:
        """Import the options and check them.

        Raises:
            PluginError: if they cannot be imported or are not a frozen dataclass that derives
                from the base of their kind.
        """
        base = _options_base(self.kind)
        if self.options is None:
            return base or NoOptions
        found = _resolve(self.options, self.owner, f"{self}, options")
        fault = _fault_of_options(found, base)
        if fault:
            raise PluginError(f"{self}, options {self.options!r}: {fault}", owner=self.owner)
        return found  # type: ignore[no-any-return]  # a dataclass, checked above

    def build(self, options: Any = None, *args: Any) -> Any:  # noqa: ANN401 - each has its own
        """Make the object: ``target(options, *args)``.

        Args:
            options: an instance of :meth:`options_class`; None for its defaults.
            args: what the kind gets besides, as in ``(source,)`` for a sampler.

        Raises:
            PluginError: with the owner, if options are of another class, the constructor raises,
                or the object lacks a member of its face.
        """
        target, wanted = self.load(), self.options_class()
        if options is None:
            with boundary(self.owner, f"making the default options of {self}"):
                options = wanted()
        if not isinstance(options, wanted):
            raise PluginError(
                f"{self} takes options of class {wanted.__name__}, not {type(options).__name__}",
                owner=self.owner,
            )
        with boundary(self.owner, f"building {self}"):
            made = target(options, *args)
        missing = [name for name in _MEMBERS.get(self.kind, ()) if not hasattr(made, name)]
        if missing:
            raise PluginError(
                f"{self}: the object from {self.target!r} lacks {', '.join(missing)}",
                hint=f"a {self.kind} needs all of: {', '.join(_MEMBERS[self.kind])}; "
                "see bestiary.protocols",
                owner=self.owner,
            )
        return made


def _resolve(path: str, owner: Owner, what: str) -> Any:  # noqa: ANN401 - any attribute
    """The attribute that ``module:attribute`` names."""
    module_name, _, attribute = path.partition(":")
    try:
        with boundary(owner, f"{what} {path!r}: importing {module_name}"):
            found: Any = import_module(module_name)
    except PluginError as error:
        missing = error.__cause__
        if isinstance(missing, ModuleNotFoundError) and missing.name:
            if f"{module_name}.".startswith(f"{missing.name}."):
                error.hint = "correct the module name where the plugin registers it"
            else:
                error.hint = f"install what {owner.distribution} needs: {missing.name}"
        raise
    for part in attribute.split("."):
        if not hasattr(found, part):
            near = did_you_mean(part, [name for name in dir(found) if not name.startswith("_")])
            raise PluginError(
                f"{what} {path!r}: module {module_name} has no attribute {attribute!r}{near}",
                hint="correct the name where the plugin registers it",
                owner=owner,
            )
        found = getattr(found, part)
    return found


def _options_base(kind: str) -> type | None:
    """The class that options of this kind derive from."""
    name = _BASES.get(kind)
    return getattr(import_module("bestiary.protocols"), name) if name else None


def _fault_of_options(found: Any, base: type | None) -> str:  # noqa: ANN401 - what was registered
    """What is wrong with a class of options, or nothing."""
    if not isinstance(found, type) or not dataclasses.is_dataclass(found):
        return "a frozen dataclass is needed: @dataclass(frozen=True, kw_only=True, slots=True)"
    if not found.__dataclass_params__.frozen:  # type: ignore[attr-defined]  # set by @dataclass
        return f"the dataclass {found.__name__} is not frozen; write @dataclass(frozen=True, …)"
    if base is None:
        return ""
    if not issubclass(found, base):
        return f"{found.__name__} must derive from bestiary.protocols.{base.__name__}"
    settings = {field.name for field in dataclasses.fields(base)}
    named = {field.name for field in dataclasses.fields(found)}
    declared = sorted((named - settings) & set(dir(base)))
    if declared:
        return (
            f"{found.__name__} makes a setting of {', '.join(declared)}, which belong to the "
            "class; annotate them as ClassVar[...]"
        )
    return ""
