"""Makes the catalog's options visible to Hydra, each imported when it is chosen.

Hydra's own ConfigStore would need the defaults of every option beforehand, so that one broken
plugin would stop every run, and would take the first of two equal names in silence.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.object_type import ObjectType
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigLoadError, ConfigResult, ConfigSource
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import OmegaConf

from bestiary.config.catalog import Catalog, Choice
from bestiary.config.plain import defaults_of, escaped
from bestiary.config.schema import CORE_CHOICES, GROUPS, MANY, MODELS, RunConfig, kind_of
from bestiary.config.suggest import did_you_mean, listing
from bestiary.errors import PluginError

PRIMARY: Final = "__bestiary__"
"""Name of the root configuration."""

CHOSEN: Final = "__chosen__"
"""Marks the trackers that were chosen, as opposed to those whose options were merely set."""

_CATALOG: ContextVar[Catalog | None] = ContextVar("bestiary_catalog", default=None)


@contextmanager
def visible(catalog: Catalog) -> Iterator[None]:
    """Let Hydra compose from a catalog inside the block."""
    plugins = Plugins.instance()
    plugins.register(CatalogSource)
    plugins.register(CatalogSearchPath)
    token = _CATALOG.set(catalog)
    try:
        yield
    finally:
        _CATALOG.reset(token)


class CatalogSearchPath(SearchPathPlugin):
    """Adds the catalog to Hydra's search path while one is visible."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Append the source of the catalog and the plugins' configuration packages."""
        catalog = _CATALOG.get()
        if catalog is not None:
            search_path.append(provider="bestiary", path="bestiary://")
            for package in catalog.packages:
                search_path.append(provider="bestiary", path=f"pkg://{package}")


class CatalogSource(ConfigSource):
    """The options of all groups as Hydra configuration files that exist in memory only."""

    @staticmethod
    def scheme() -> str:
        """The scheme of its address in the search path."""
        return "bestiary"

    def load_config(self, config_path: str) -> ConfigResult:
        """The root configuration, or the defaults of one option."""
        path = config_path.removesuffix(".yaml")
        group, _, name = path.partition("/")
        catalog = _visible()
        if path == PRIMARY:
            node, package = _root(catalog), None
        elif self.is_config(path):
            choice = catalog.choice(group, name)
            node, package = _option(choice), _package(choice)
        else:
            raise ConfigLoadError(f"{config_path} is not an option")
        return ConfigResult(
            config=OmegaConf.create(node),
            path=self.full_path(),
            provider=self.provider,
            header={"package": package},
        )

    def available(self) -> bool:
        """Always: the search path has it only while a catalog is visible."""
        return True

    def is_group(self, config_path: str) -> bool:
        """Whether a path is the name of a group."""
        return config_path.rstrip("/") in (*GROUPS, MANY)

    def is_config(self, config_path: str) -> bool:
        """Whether a path is the root or ``group/option``."""
        path = config_path.removesuffix(".yaml")
        if path == PRIMARY:
            return True
        group, _, name = path.partition("/")
        catalog = _visible()
        if not self.is_group(group) or not name:
            return False
        if group == "model":
            return name in MODELS
        if name in CORE_CHOICES.get(group, {}):
            return True
        return name.rpartition(":")[2] in catalog.registry.names(kind_of(group))

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        """The options of a group."""
        group = config_path.strip("/")
        if results_filter == ObjectType.GROUP or not self.is_group(group):
            return []
        return sorted(_visible().names(group))


def _visible() -> Catalog:
    catalog = _CATALOG.get()
    if catalog is None:
        raise ConfigLoadError("no catalog is visible to Hydra")
    return catalog


def _root(catalog: Catalog) -> dict[str, Any]:
    # Hydra walks the list from its end, and an option can override only what stands before it:
    # the algorithm, which names defaults for its siblings, comes last.
    defaults: list[Any] = []
    for group in sorted(GROUPS, key=lambda name: name == "algorithm"):
        name = GROUPS[group]
        defaults.append({group: name if name in catalog.names(group) else "???"})
    defaults.insert(0, {MANY: []})
    return {"defaults": [*defaults, "_self_"], **escaped(defaults_of(RunConfig))}


def _option(choice: Choice) -> dict[str, Any]:
    cls = choice.options_class()
    values = {**defaults_of(cls, choice.owner), **choice.preset}
    values = {key: escaped(value) for key, value in values.items()}
    if "defaults" in values:
        raise PluginError(
            f"{choice} has an option 'defaults', a word that Hydra keeps for itself",
            hint="rename the field of its options",
            owner=choice.owner,
        )
    if choice.group == MANY:
        return {CHOSEN: choice.name, **values}
    if choice.group != "algorithm":
        return values
    return {"defaults": ["_self_", *_siblings(cls, choice)], "algorithm": values}


def _siblings(cls: type, choice: Choice) -> list[dict[str, str]]:
    """What an algorithm chooses in other groups unless the user does."""
    components: Mapping[str, str] = getattr(cls, "components", {})
    allowed = [group for group in GROUPS if group not in ("algorithm", "task", "model")]
    for group in components:
        if group not in allowed:
            raise PluginError(
                f"{choice} names a component for the group '{group}'"
                + did_you_mean(group, allowed),
                hint=f"its ClassVar `components` may have the keys {listing(allowed)}",
                owner=choice.owner,
            )
    return [{f"override /{group}": name} for group, name in components.items()]


def _package(choice: Choice) -> str:
    if choice.group == "algorithm":
        return "_global_"  # so that its defaults list can override groups of the root
    return f"{MANY}.{choice.name}" if choice.group == MANY else choice.group
