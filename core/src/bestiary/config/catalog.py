"""What can be chosen in each group, and who provides it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bestiary.config.files import Place, package_place, yaml_files
from bestiary.config.schema import (
    CORE_CHOICES,
    GROUPS,
    MANY,
    MODELS,
    ModelOptions,
    kind_of,
)
from bestiary.config.suggest import did_you_mean, listing
from bestiary.errors import ConfigError, Owner
from bestiary.plugins.component import Component, NoOptions

if TYPE_CHECKING:
    from bestiary.plugins.manager import PluginSet


def core_owner() -> Owner:
    """The owner of what core itself provides."""
    import bestiary

    return Owner("core", "bestiary", bestiary.__version__)


@dataclass(frozen=True, slots=True)
class Choice:
    """One option of a group.

    Args:
        group: as in ``algorithm``.
        name: as in ``grpo`` or ``bestiary-grpo:grpo``.
        owner: who provides it.
        component: the registered component; None for core's own options.
        core: its options class where there is no component.
        preset: values that differ from the defaults of the class.
        doc: one line, where there is no options class to ask.
    """

    group: str
    name: str
    owner: Owner
    component: Component | None = None
    core: type = NoOptions
    preset: Mapping[str, Any] = field(default_factory=dict)
    doc: str = ""

    def __str__(self) -> str:
        return f"{self.group}={self.name}"

    def options_class(self) -> type:
        """The dataclass of its options, imported now."""
        return self.core if self.component is None else self.component.options_class()


class Catalog:
    """The options of every group: registered components and core's own.

    Args:
        plugins: the loaded plugins.
        config_dir: folder with the user's YAML files; those in its folder ``model`` are options
            of that group, those in other folders are chosen with ``+folder=name``.
    """

    def __init__(self, plugins: "PluginSet", config_dir: Path | None = None) -> None:
        self.plugins = plugins
        self.registry = plugins.registry
        self.config_dir = _checked(config_dir)
        self.groups = (*GROUPS, MANY)
        places = [] if self.config_dir is None else [Place(self.config_dir, "--config-dir")]
        places += [package_place(package, owner) for package, owner in plugins.config_packages()]
        self.packages = tuple(package for package, _ in plugins.config_packages())
        found = yaml_files(places)
        self._models = {name: str(path) for name, path in found.pop("model", {}).items()}
        self.files: dict[str, list[str]] = {
            folder: sorted(names) for folder, names in found.items()
        }
        """Names of YAML files by folder, as in ``{"experiment": ["demo"]}``."""

    def choice(self, group: str, name: str) -> Choice:
        """The option of a group by name.

        Raises:
            UserError: if there is none, naming all options and the package of each.
        """
        if name in CORE_CHOICES.get(group, {}):
            return Choice(group, name, core_owner(), doc=CORE_CHOICES[group][name])
        if group != "model":
            component = self.registry.get(kind_of(group), name)
            return Choice(group, name, component.owner, component)
        if name in MODELS:
            model = MODELS[name]
            return Choice(group, name, core_owner(), None, model.options, model.preset, model.doc)
        if name in self._models:
            where = f"the file {self._models[name]}."
            return Choice(group, name, core_owner(), None, ModelOptions, doc=where)
        names = self.names("model")
        raise ConfigError(
            f"no model '{name}'{did_you_mean(name, names)}",
            hint=f"there are: {listing(names)}; any other model: model=hf model.path={name}",
        )

    def names(self, group: str) -> list[str]:
        """All names of a group."""
        if group == "model":
            return [*MODELS, *sorted(self._models)]
        return [*CORE_CHOICES.get(group, {}), *self.registry.names(kind_of(group))]

    def described(self, group: str) -> list[str]:
        """``name (distribution version)`` for each option of a group."""
        if group == "model":
            return self.names(group)
        found = [
            f"{c.name} ({c.owner.distribution} {c.owner.version})"
            for c in self.registry.components(kind_of(group))
        ]
        return [*CORE_CHOICES.get(group, {}), *found]

    def choices(self, group: str) -> list[Choice]:
        """All options of a group; a name with several owners comes once for each."""
        if group == "model":
            return [self.choice(group, name) for name in self.names(group)]
        core = [self.choice(group, name) for name in CORE_CHOICES.get(group, {})]
        there = self.registry.components(kind_of(group))
        shared = {c.name for c in there if sum(o.name == c.name for o in there) > 1}
        return core + [
            Choice(group, c.qualified if c.name in shared else c.name, c.owner, c) for c in there
        ]


def _checked(config_dir: Path | None) -> Path | None:
    if config_dir is None:
        return None
    folder = config_dir.expanduser().resolve()
    if not folder.is_dir():
        raise ConfigError(
            f"--config-dir {config_dir}: there is no such folder",
            hint="give the folder that holds experiment/, as in --config-dir configs",
        )
    return folder
