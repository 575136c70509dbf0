"""The registry: which components there are, under which names, and who owns them."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from bestiary.errors import Owner, PluginError
from bestiary.plugins.component import KINDS, Component
from bestiary.plugins.names import did_you_mean, nearest, normalise

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
_TARGET = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


class Registry:
    """Components by kind and name.

    A plugin writes to it inside ``bestiary_register`` only, with the method of each kind; all of
    them take a name, a ``target`` and the ``options`` as strings ``"module:attribute"``. Two
    owners of one name may both register; choosing that name is then the error, so that one
    conflict leaves everything else usable.
    """

    def __init__(self) -> None:
        self._offers: dict[str, dict[str, list[Component]]] = {kind: {} for kind in KINDS}
        self._owner: Owner | None = None
        self._pending: list[Component] = []
        self.unavailable: dict[Owner, str] = {}
        """Plugins that are installed and not loaded, with the reason: for messages."""

    # ------------------------------------------------------------------ one method for each kind

    def algorithm(self, name: str, *, target: str, options: str | None = None) -> None:
        """Register an :class:`~bestiary.protocols.Algorithm`: ``target(options, seed)``."""
        self._add("algorithm", name, target, options)

    def advantage(self, name: str, *, target: str, options: str | None = None) -> None:
        """Register an :class:`~bestiary.protocols.AdvantageEstimator`: ``target(options)``."""
        self._add("advantage", name, target, options)

    def correction(self, name: str, *, target: str, options: str | None = None) -> None:
        """Register a :class:`~bestiary.protocols.Correction`: ``target(options)``."""
        self._add("correction", name, target, options)

    def loss(self, name: str, *, target: str, options: str | None = None) -> None:
        """Register a :class:`~bestiary.protocols.Loss`: ``target(options)``."""
        self._add("loss", name, target, options)

    def sampler(self, name: str, *, target: str, options: str | None = None) -> None:
        """Register a :class:`~bestiary.protocols.Sampler`: ``target(options, source)``."""
        self._add("sampler", name, target, options)

    def reward(self, name: str, *, target: str, options: str | None = None) -> None:
        """Register a :class:`~bestiary.protocols.Reward`: ``target(options)``."""
        self._add("reward", name, target, options)

    def task(self, name: str, *, target: str, options: str | None = None) -> None:
        """Register a :class:`~bestiary.protocols.Task`: ``target(options)``."""
        self._add("task", name, target, options)

    def rollout_engine(self, name: str, *, target: str, options: str | None = None) -> None:
        """Register an engine that draws responses: ``target(options, spec, ranks)``."""
        self._add("rollout_engine", name, target, options)

    def train_engine(self, name: str, *, target: str, options: str | None = None) -> None:
        """Register an engine that trains: ``target(options, spec, ranks)``."""
        self._add("train_engine", name, target, options)

    def tracker(self, name: str, *, target: str, options: str | None = None) -> None:
        """Register a :class:`~bestiary.protocols.Tracker`: ``target(options)``."""
        self._add("tracker", name, target, options)

    def schedule(self, name: str, *, target: str, options: str | None = None) -> None:
        """Register a schedule, which decides when to collect and learn: ``target(options)``."""
        self._add("schedule", name, target, options)

    def placement(self, name: str, *, target: str, options: str | None = None) -> None:
        """Register a placement, which decides where models go: ``target(options)``."""
        self._add("placement", name, target, options)

    def replay(self, name: str, *, target: str, options: str | None = None) -> None:
        """Register a replay buffer: ``target(options)``."""
        self._add("replay", name, target, options)

    # ------------------------------------------------------------------ reading

    def get(self, kind: str, name: str) -> Component:
        """The component of a name, or of ``distribution:name``.

        Raises:
            PluginError: if nobody offers it, or several do and no distribution was given.
        """
        offers = self._kind(kind)
        distribution, _, bare = name.rpartition(":")
        found = [
            component
            for component in offers.get(bare, [])
            if not distribution
            or normalise(component.owner.distribution) == normalise(distribution)
        ]
        if not found:
            raise self._unknown(kind, name)
        if len(found) > 1:
            raise _conflict(found)
        return found[0]

    def names(self, kind: str) -> list[str]:
        """The names of a kind, sorted; one that several plugins offer comes once."""
        return sorted(self._kind(kind))

    def components(self, kind: str = "") -> list[Component]:
        """All components, or those of one kind, sorted by kind, name and distribution."""
        kinds = [kind] if kind else list(KINDS)
        found = [c for k in kinds for offers in self._kind(k).values() for c in offers]
        return sorted(found, key=lambda c: (KINDS.index(c.kind), c.name, c.qualified))

    def conflicts(self) -> list[list[Component]]:
        """The components that share their kind and name with another."""
        return [
            offers
            for names in self._offers.values()
            for _, offers in sorted(names.items())
            if len(offers) > 1
        ]

    # ------------------------------------------------------------------ writing

    @contextmanager
    def owned_by(self, owner: Owner) -> Iterator["Registry"]:
        """Take registrations for an owner: all of them when the block ends well, else none."""
        if self._owner is not None:
            raise PluginError(f"{self._owner} is registering already", owner=owner)
        self._owner, self._pending = owner, []
        try:
            yield self
            for component in self._pending:
                self._offers[component.kind].setdefault(component.name, []).append(component)
        finally:
            self._owner, self._pending = None, []

    def _add(self, kind: str, name: str, target: str, options: str | None) -> None:
        owner, what = self._owner, f"registry.{kind}({name!r}, …)"
        if owner is None:
            raise PluginError(
                f"{what} was called after loading",
                hint="register inside the hook bestiary_register(registry)",
            )
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise PluginError(
                f"{what}: a name is a letter followed by letters, digits, '_' or '-'", owner=owner
            )
        for word, value in (("target", target), ("options", options)):
            if value is None and word == "options":
                continue
            if not isinstance(value, str) or not _TARGET.fullmatch(value):
                raise PluginError(
                    f"{what}: {word}={value!r} is not a string 'module:attribute'",
                    hint="give strings, so that the code is imported when it is chosen",
                    owner=owner,
                )
        if any((kind, name) == (other.kind, other.name) for other in self._pending):
            raise PluginError(f"{what}: the plugin registers this name twice", owner=owner)
        self._pending.append(Component(kind, name, target, options, owner))

    # ------------------------------------------------------------------ messages

    def _kind(self, kind: str) -> dict[str, list[Component]]:
        if kind not in self._offers:
            raise PluginError(
                f"no kind of component {kind!r}{did_you_mean(kind, KINDS)}",
                hint=f"there are: {', '.join(KINDS)}",
            )
        return self._offers[kind]

    def _unknown(self, kind: str, name: str) -> PluginError:
        there = self.components(kind)
        known = [c.qualified if ":" in name else c.name for c in there]
        listed = ", ".join(f"{c.name} ({c.owner.distribution} {c.owner.version})" for c in there)
        message = f"no {kind} {name!r}{did_you_mean(name, known)}"
        message += f" There are: {listed}" if message.endswith("?") else f"; there are: {listed}"
        if not there:
            message = f"no {kind} {name!r}: no loaded plugin offers any {kind}"
        elsewhere = [k for k in KINDS if k != kind and name in self._offers[k]]
        if elsewhere and not nearest(name, known):
            message += f"; {name!r} is the name of a {' and of a '.join(elsewhere)}"
        absent = [f"{owner}: {reason}" for owner, reason in self.unavailable.items()]
        hint = "see `bestiary plugins`"
        if absent:
            hint = "these plugins are installed but not loaded: " + "; ".join(absent)
        return PluginError(message, hint=hint)


def _conflict(found: list[Component]) -> PluginError:
    """The error of choosing a name that has several owners."""
    kind, name = found[0].kind, found[0].name
    owners = " and ".join(str(component.owner) for component in found)
    distributions = sorted({normalise(component.owner.distribution) for component in found})
    if len(distributions) > 1:
        chosen = " or ".join(f"{kind}={distribution}:{name}" for distribution in distributions)
        ways = [f"choose with {chosen}"]
        blocked = " or ".join(distributions)
    else:
        ways = []
        blocked = " or ".join(sorted(component.owner.plugin for component in found))
    ways.append(f"block one (BESTIARY_BLOCK_PLUGINS or --block-plugin): {blocked}")
    ways.append(f"uninstall one: pip uninstall {' or '.join(distributions)}")
    return PluginError(f"{kind} {name!r} has several owners: {owners}", hint="; ".join(ways))
