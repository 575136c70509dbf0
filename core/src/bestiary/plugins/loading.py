"""Load one plugin: import, check, register; a failure becomes a record and leaves no trace."""

import traceback
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from pluggy import PluginManager

from bestiary.errors import BestiaryError, Owner, PluginError, boundary
from bestiary.plugins.calling import Guarded, call_one
from bestiary.plugins.checking import Implementation, implementations
from bestiary.plugins.discovery import Candidate
from bestiary.plugins.names import normalise
from bestiary.plugins.registry import Registry

Status = Literal["active", "blocked", "failed"]


@dataclass(frozen=True, slots=True)
class PluginRecord:
    """What became of one installed plugin.

    Args:
        name: of its entry point.
        distribution: that installed it.
        version: of the distribution.
        location: file of its hooks, or the folder of its metadata where it was not imported.
        status: ``active``, ``blocked`` (never imported) or ``failed``.
        reason: why it is not active, or which of its names others offer too.
        hooks: the hooks that it implements.
        components: what it registered, as ``kind/name``.
        config_packages: packages with configuration files.
        modules: the modules that its components and hooks are in.
        traceback: of the failure.
        error: the failure itself.
    """

    name: str
    distribution: str
    version: str
    location: str
    status: Status
    reason: str = ""
    hooks: tuple[str, ...] = ()
    components: tuple[str, ...] = ()
    config_packages: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    traceback: str = ""
    error: BaseException | None = field(default=None, repr=False, compare=False)

    @property
    def owner(self) -> Owner:
        """Whom messages name."""
        return Owner(self.name, self.distribution, self.version)

    def row(self) -> dict[str, Any]:
        """JSON values."""
        hidden = ("error", "modules", "config_packages")
        values = {k: v for k, v in asdict(self).items() if k not in hidden}
        return {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}


def load(
    candidate: Candidate, reason_against: str, pm: PluginManager, registry: Registry
) -> PluginRecord:
    """Import a plugin and register its hooks and components; never raises for its faults.

    Args:
        candidate: the plugin.
        reason_against: why it is not loaded; empty to load it.
        pm: takes its hooks.
        registry: takes its components.
    """
    owner, location = candidate.owner, candidate.location
    who = (owner.plugin, owner.distribution, owner.version, location)
    if reason_against:
        return PluginRecord(*who, "blocked", reason_against)
    try:
        if candidate.fault:
            hint = f"reinstall the distribution in {location}, or remove what is left of it"
            raise PluginError(candidate.fault, hint=hint, owner=owner)
        with boundary(owner, f"importing {candidate.entry_point.value}"):
            plugin = candidate.entry_point.load()
        return admit(plugin, owner, pm, registry, candidate.entry_point.module, location)
    except (Exception, SystemExit) as error:  # a module that exits must not end every command
        reason = _reason(error)
        text = "".join(traceback.format_exception(error))
        return PluginRecord(*who, "failed", reason, traceback=text, error=error)


def admit(
    plugin: object,
    owner: Owner,
    pm: PluginManager,
    registry: Registry,
    module: str = "",
    location: str = "",
) -> PluginRecord:
    """Check a plugin that is imported, and register its hooks and components.

    Raises:
        PluginError: with the owner; nothing of the plugin stays registered.
    """
    with boundary(owner, "checking its hooks"):
        found = implementations(pm, plugin)
    key = f"{normalise(owner.distribution)}:{owner.plugin}"
    _refuse_twins(plugin, key, owner, pm)
    guarded = Guarded(plugin, owner, found)
    try:
        with boundary(owner, "registering its hooks"):
            pm.register(guarded, name=key)
            pm.check_pending()
        packages = _config_packages(guarded, pm)
        before = registry.components()
        with registry.owned_by(owner):
            call_one(pm, "bestiary_register", guarded, registry=registry)
    except BaseException:
        if pm.get_plugin(key) is guarded:
            pm.unregister(guarded)
        raise
    added = [component for component in registry.components() if component not in before]
    home = module or getattr(plugin, "__name__", type(plugin).__module__)
    paths = [path for c in added for path in (c.target, c.options) if path]
    return PluginRecord(
        owner.plugin,
        owner.distribution,
        owner.version,
        str(getattr(plugin, "__file__", None) or location),
        "active",
        hooks=_hooks(found),
        components=tuple(f"{c.kind}/{c.name}" for c in added),
        config_packages=packages,
        modules=tuple(sorted({home, *packages, *(path.partition(":")[0] for path in paths)})),
    )


def _hooks(found: list[Implementation]) -> tuple[str, ...]:
    return tuple(sorted({implementation.hook for implementation in found}))


def _config_packages(guarded: Guarded, pm: PluginManager) -> tuple[str, ...]:
    """What the plugin's ``bestiary_config_packages`` returns, checked."""
    packages: list[str] = []
    for answer in call_one(pm, "bestiary_config_packages", guarded):
        if not isinstance(answer, list) or not all(isinstance(name, str) for name in answer):
            raise PluginError(
                f"hook 'bestiary_config_packages' returned {answer!r}, not a list of names",
                hint='return import names, as in ["bestiary_mine.conf"]',
                owner=guarded.owner,
            )
        packages.extend(answer)
    return tuple(packages)


def _refuse_twins(plugin: object, key: str, owner: Owner, pm: PluginManager) -> None:
    """Refuse a plugin whose object or name is taken, naming who has it."""
    for other in pm.get_plugins():
        if not isinstance(other, Guarded):
            continue
        if other.plugin is plugin:
            raise PluginError(
                f"its entry point leads to the same code as {other.owner}",
                hint=f"uninstall one of {owner.distribution} and {other.owner.distribution}",
                owner=owner,
            )
        if pm.get_plugin(key) is other:
            raise PluginError(
                f"{owner.distribution} has two entry points named {owner.plugin!r}",
                hint="rename one of them",
                owner=owner,
            )


def _reason(error: BaseException) -> str:
    """A failure in one line; the owner stands beside it."""
    if isinstance(error, BestiaryError):
        return f"{error.message} -> {error.hint}" if error.hint else error.message
    return f"{type(error).__name__}: {error}"
