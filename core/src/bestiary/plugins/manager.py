"""Load plugins one by one, each failure on its own, and hold what came of it.

The entry points are iterated here and not by pluggy's own loader: there one broken import ends
the loading, and the second of two plugins with equal names is dropped in silence.
"""

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pluggy import PluginManager

from bestiary.errors import Owner, PluginError
from bestiary.plugins import calling, fingerprint, hookspecs, tracing
from bestiary.plugins.discovery import REQUIRE, Selection, discover
from bestiary.plugins.loading import PluginRecord, admit, load
from bestiary.plugins.markers import PROJECT
from bestiary.plugins.registry import Registry

if TYPE_CHECKING:
    from bestiary.plugins.events import Event, PlacementRequest

__all__ = ["PluginRecord", "PluginSet", "check_fingerprint", "differences", "load_plugins"]

check_fingerprint = fingerprint.check_fingerprint
differences = fingerprint.differences

logger = logging.getLogger("bestiary.plugins")


@dataclass(frozen=True, slots=True)
class PluginSet:
    """The plugins of a process.

    Args:
        pm: pluggy's manager with the active plugins.
        registry: the components that they offer.
        selection: which plugins were to be loaded.
        records: one for each installed plugin, loaded or not.
        notes: lines for people, as on a block that matches no plugin.
    """

    pm: PluginManager
    registry: Registry
    selection: Selection
    records: tuple[PluginRecord, ...]
    notes: tuple[str, ...] = ()
    _fingerprint: dict[str, Any] = field(default_factory=dict, repr=False)

    def report(self) -> list[dict[str, Any]]:
        """One row of JSON values for each installed plugin."""
        return [record.row() for record in self.records]

    def fingerprint(self) -> dict[str, Any]:
        """What is loaded, in JSON values: distribution, version, components and files of each.

        Made once: a file that changes later does not count.
        """
        if not self._fingerprint:
            plugins = [
                {
                    "plugin": record.name,
                    "distribution": record.distribution,
                    "version": record.version,
                    "components": list(record.components),
                    "content": fingerprint.content_hash(record.modules),
                }
                for record in sorted(self.records, key=lambda r: (r.distribution, r.name))
                if record.status == "active"
            ]
            self._fingerprint.update(fingerprint.summarise(hookspecs.API_VERSION, plugins))
        return self._fingerprint

    def environment(self) -> dict[str, str]:
        """Variables under which a child or worker process loads the same plugins."""
        return self.selection.environment()

    def config_packages(self) -> list[tuple[str, Owner]]:
        """Packages with configuration files, each with the plugin that named it."""
        return [(package, r.owner) for r in self.records for package in r.config_packages]

    def observe(self, event: "Event") -> None:
        """Tell all observers of an event.

        Raises:
            BestiaryError: attributed to its plugin, after all observers were called.
        """
        calling.observe(self.pm, event)

    def plan_placement(self, request: "PlacementRequest") -> Mapping[str, Sequence[str]] | None:
        """Ask plugins where models go; None when all of them pass."""
        answer: Mapping[str, Sequence[str]] | None
        answer = self.pm.hook.bestiary_plan_placement(request=request)
        return answer

    def add(self, plugin: object, owner: Owner) -> PluginRecord:
        """Load an object of this process as a plugin, as a script or the run loop does.

        Raises:
            PluginError: if its hooks are wrong.
        """
        return admit(plugin, owner, self.pm, self.registry)


def load_plugins(
    *, block: Iterable[str] = (), strict: bool = False, enforce_required: bool = True
) -> PluginSet:
    """Load the installed plugins that the environment selects.

    A plugin that cannot be loaded is recorded and the rest load; choosing one of its components
    is then the error.

    Args:
        block: names of plugins or distributions to leave out, besides BESTIARY_BLOCK_PLUGINS.
        strict: raise on the first plugin that cannot be loaded.
        enforce_required: False lists unmet BESTIARY_REQUIRE_PLUGINS in ``notes`` only, for
            commands that show what is wrong.

    Raises:
        PluginError: if a required plugin is missing, or the core's own is blocked or broken.
    """
    selection = Selection.read(os.environ, block)
    candidates = discover()
    against = {candidate.key: selection.reason_against(candidate) for candidate in candidates}
    notes = [*selection.unmatched(candidates)]
    unmet = selection.unmet(candidates) if selection.require else []
    _enforce(unmet, notes, enforce_required)

    pm = PluginManager(PROJECT)
    pm.add_hookspecs(hookspecs)
    if tracing.wanted(os.environ):
        tracing.trace(pm)
    registry = Registry()
    records = []
    for candidate in candidates:
        record = load(candidate, against[candidate.key], pm, registry)
        if record.status != "active":
            registry.unavailable[record.owner] = f"{record.status}: {record.reason}"
        if record.status == "failed" and (strict or candidate.essential):
            raise PluginError(
                f"plugin cannot be loaded: {record.reason}", owner=record.owner
            ) from record.error
        records.append(record)
    failed = selection.unmet_after({r.owner: r.reason for r in records if r.status == "failed"})
    _enforce(failed, notes, enforce_required)
    records = _with_conflicts(records, registry)
    for note in notes:
        logger.warning(note)
    return PluginSet(pm, registry, selection, tuple(records), tuple(notes))


def _enforce(unmet: list[str], notes: list[str], enforce: bool) -> None:
    """Stop on plugins that are required and not there, or note them."""
    if unmet and enforce:
        raise PluginError(
            f"{REQUIRE} is not met: " + "; ".join(unmet),
            hint="install or unblock them, or change the variable; see `bestiary plugins`",
        )
    notes.extend(f"{REQUIRE} is not met: {line}" for line in unmet)


def _with_conflicts(records: list[PluginRecord], registry: Registry) -> list[PluginRecord]:
    """The records, with the names that each plugin shares with another as a reason."""
    shared: dict[Owner, list[str]] = {}
    for offers in registry.conflicts():
        for component in offers:
            others = " and ".join(str(c.owner) for c in offers if c is not component)
            line = f"{component.kind}/{component.name} is also offered by {others}"
            shared.setdefault(component.owner, []).append(line)
    return [
        replace(record, reason="; ".join(shared[record.owner]))
        if record.owner in shared
        else record
        for record in records
    ]
