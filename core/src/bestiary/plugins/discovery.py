"""Find installed plugins and decide, before any of their code is imported, which to load."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import Distribution, EntryPoint, distribution, distributions
from pathlib import Path

from bestiary.errors import Owner, PluginError
from bestiary.plugins.markers import PROJECT
from bestiary.plugins.names import did_you_mean, normalise

BLOCK = "BESTIARY_BLOCK_PLUGINS"
LOAD = "BESTIARY_LOAD_PLUGINS"
REQUIRE = "BESTIARY_REQUIRE_PLUGINS"


@dataclass(frozen=True, slots=True)
class Candidate:
    """An installed plugin, not imported.

    Args:
        owner: entry-point name, distribution and version.
        entry_point: where its hooks are.
        location: folder that the distribution is installed in.
        fault: why its metadata cannot be used; empty for a sound plugin.
    """

    owner: Owner
    entry_point: EntryPoint
    location: str
    fault: str = ""

    @property
    def key(self) -> str:
        """``distribution:plugin``, unique among plugins."""
        return f"{normalise(self.owner.distribution)}:{self.owner.plugin}"

    @property
    def essential(self) -> bool:
        """Whether it is the core's own plugin, which is always loaded."""
        return self.key == f"{PROJECT}:builtin"


def discover() -> list[Candidate]:
    """Installed plugins, the core's own first, then by name and distribution.

    A distribution that the import path reaches twice (``lib`` and a link ``lib64``, metadata in a
    source tree and in site-packages) counts once, as the one that Python finds first. Metadata
    that cannot be read makes a candidate with a fault and hides no other.
    """
    names: set[str] = set()
    found: list[Candidate] = []
    for dist in distributions():
        if PROJECT in (dist.read_text("entry_points.txt") or ""):
            try:
                names.add(normalise(dist.name))
            except Exception as error:  # whatever the parser of a half-removed install raises
                found.append(_faulty("unknown", dist, "metadata", error))
    for name in names:
        found.extend(_of(distribution(name)))
    return sorted(
        found, key=lambda c: (not c.essential, c.owner.plugin, c.key, c.entry_point.value)
    )


def _of(dist: Distribution) -> list[Candidate]:
    """The plugins of one distribution; an entry point that is written twice counts once."""
    try:
        entry_points = dict.fromkeys(e for e in dist.entry_points if e.group == PROJECT)
        where = _location(dist)
        return [Candidate(Owner(e.name, dist.name, dist.version), e, where) for e in entry_points]
    except Exception as error:
        return [_faulty(dist.name, dist, "entry_points.txt", error)]


def _faulty(name: str, dist: Distribution, what: str, error: Exception) -> Candidate:
    fault = f"its {what} cannot be read: {type(error).__name__}: {error}"
    owner = Owner(name, name, "unknown")
    return Candidate(owner, EntryPoint(name, "", PROJECT), _location(dist), fault)


def _location(dist: Distribution) -> str:
    return str(Path(str(dist.locate_file(""))))


@dataclass(frozen=True, slots=True)
class Selection:
    """Which plugins a process loads.

    A pattern is the name of a plugin, of its distribution, or ``distribution:plugin``.

    Args:
        block: patterns to leave out, with where each was given.
        load: patterns to load, the core's own plugin besides; None loads all.
        require: requirements as in ``bestiary-grpo>=0.1``.
    """

    block: Mapping[str, str]
    load: tuple[str, ...] | None
    require: tuple[str, ...]

    @classmethod
    def read(cls, environ: Mapping[str, str], block: Iterable[str] = ()) -> "Selection":
        """From the environment and the patterns of ``--block-plugin``."""
        blocked = dict.fromkeys(_split(environ.get(BLOCK, "")), BLOCK)
        for text in block:
            blocked.update(dict.fromkeys(_split(text), "--block-plugin"))
        load = _split(environ[LOAD]) if LOAD in environ else None
        return cls(blocked, load, _split_requirements(environ.get(REQUIRE, "")))

    def environment(self) -> dict[str, str]:
        """Variables under which another process selects the same plugins."""
        variables = {BLOCK: ",".join(self.block), REQUIRE: " ".join(self.require)}
        variables = {name: value for name, value in variables.items() if value}
        if self.load is not None:
            variables[LOAD] = ",".join(self.load)
        return variables

    def reason_against(self, candidate: Candidate) -> str:
        """Why a plugin is not loaded; empty for one that is.

        Raises:
            PluginError: if the core's own plugin is to be blocked.
        """
        for pattern, source in self.block.items():
            if _matches(pattern, candidate):
                if candidate.essential:
                    raise PluginError(
                        f"{source} names {pattern!r}: the core's own plugin cannot be blocked",
                        hint="name the plugin or distribution that you want to leave out",
                    )
                return f"blocked by {source}"
        if self.load is None or candidate.essential:
            return ""
        if any(_matches(pattern, candidate) for pattern in self.load):
            return ""
        return f"not in {LOAD}={','.join(self.load)!r}"

    def unmatched(self, candidates: Sequence[Candidate]) -> Iterator[str]:
        """A line for each pattern that no installed plugin answers to."""
        known = [n for c in candidates for n in (c.owner.plugin, c.owner.distribution)]
        patterns = [*self.block.items(), *((pattern, LOAD) for pattern in self.load or ())]
        for pattern, source in patterns:
            if not any(_matches(pattern, candidate) for candidate in candidates):
                near = did_you_mean(pattern, known)
                yield f"{source} names {pattern!r}, and no such plugin is installed{near}"

    def unmet(self, candidates: Sequence[Candidate]) -> list[str]:
        """A line for each requirement that the installed plugins do not meet.

        Raises:
            PluginError: if a requirement cannot be read.
        """
        # Imported here: most processes require nothing, and this costs several milliseconds.
        from packaging.requirements import InvalidRequirement, Requirement

        lines = []
        for text in self.require:
            try:
                wanted = Requirement(text)
            except InvalidRequirement as error:
                raise PluginError(
                    f"{REQUIRE}: {text!r} is not a requirement: {str(error).splitlines()[0]}",
                    hint="write, as in bestiary-grpo>=0.1,<0.2 bestiary-lab",
                ) from error
            named = [
                c for c in candidates if normalise(c.owner.distribution) == normalise(wanted.name)
            ]
            if not named:
                near = did_you_mean(wanted.name, [c.owner.distribution for c in candidates])
                lines.append(f"{text} is not installed{near}")
            for candidate in named:
                reason = self.reason_against(candidate)
                if not wanted.specifier.contains(candidate.owner.version, prereleases=True):
                    reason = f"{candidate.owner.version} is installed in {candidate.location}"
                if reason:
                    lines.append(f"{text}: {reason}")
        return lines

    def unmet_after(self, failed: Mapping[Owner, str]) -> list[str]:
        """A line for each requirement whose plugin could not be loaded, from their reasons."""
        return [
            f"{text}: {owner} failed: {reason}"
            for text in self.require
            for owner, reason in failed.items()
            if normalise(owner.distribution) == normalise(re.split(r"[^\w.-]", text)[0])
        ]


def _split(text: str) -> tuple[str, ...]:
    return tuple(part for part in re.split(r"[,\s]+", text) if part)


def _split_requirements(text: str) -> tuple[str, ...]:
    """Requirements stand between commas or spaces, and their version bounds contain both."""
    parts = re.split(r"[,\s]+(?=[A-Za-z])", text)
    return tuple(part.strip(" \t\n,") for part in parts if part.strip(" \t\n,"))


def _matches(pattern: str, candidate: Candidate) -> bool:
    distribution, _, plugin = pattern.rpartition(":")
    if distribution:
        return candidate.key == f"{normalise(distribution)}:{plugin}"
    own = (normalise(candidate.owner.plugin), normalise(candidate.owner.distribution))
    return normalise(pattern) in own
