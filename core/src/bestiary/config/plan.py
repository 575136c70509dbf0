"""What a run is, complete and checked: the same in the command line and in the job's process."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final

from bestiary.config.catalog import Catalog, Choice, core_owner
from bestiary.config.plain import to_plain
from bestiary.config.schema import (
    CORE_CHOICES,
    GROUPS,
    MANY,
    ModelOptions,
    RunConfig,
    kind_of,
)
from bestiary.config.typed import instantiate
from bestiary.errors import ConfigError
from bestiary.protocols import ComponentRef

if TYPE_CHECKING:
    from bestiary.plugins.component import Component
    from bestiary.plugins.manager import PluginSet
    from bestiary.protocols import AlgorithmOptions, Role, Sampling

FORMAT: Final = 1
"""Version of the JSON form."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunPlan:
    """A run's settings, choices and the options of each choice.

    Args:
        run: top-level settings.
        choices: name of the chosen option of each group, ``name`` or ``distribution:name``;
            ``none`` where the algorithm uses none.
        options: the options of each choice, an instance of its dataclass.
        trackers: options of each chosen tracker, by name.
        overrides: the words that it was composed from, for records.
    """

    run: RunConfig
    choices: Mapping[str, str]
    options: Mapping[str, Any]
    trackers: Mapping[str, Any] = field(default_factory=dict)
    overrides: tuple[str, ...] = ()

    # ------------------------------------------------------------------ reading

    @property
    def algorithm(self) -> "AlgorithmOptions":
        """Options of the algorithm."""
        options: AlgorithmOptions = self.options["algorithm"]
        return options

    @property
    def model(self) -> ModelOptions:
        """Options of the model."""
        options: ModelOptions = self.options["model"]
        return options

    @property
    def roles(self) -> "tuple[Role, ...]":
        """Roles of the algorithm under its options."""
        return self.algorithm.roles()

    @property
    def samplings(self) -> "tuple[Sampling, ...]":
        """What each rollout draws, before the task's own limits are filled in."""
        return self.algorithm.samplings()

    @property
    def reads(self) -> frozenset[str]:
        """Columns that the estimator, correction, sampler and a selecting loss read."""
        found: frozenset[str] = frozenset()
        for group in ("advantage", "correction", "sampler"):
            if self.chosen(group):
                found |= frozenset(getattr(self.options[group], "requires", ()))
        loss = self.options["loss"]
        if self.chosen("loss") and loss.selects:
            found |= loss.requires - loss.selects - {"advantages"}
        return found

    def chosen(self, group: str) -> bool:
        """Whether a registered component was chosen: not so for ``none`` and for the model."""
        return group != "model" and self.choices[group] not in CORE_CHOICES.get(group, ())

    def component(self, group: str, plugins: "PluginSet") -> "Component":
        """The chosen component of a group, to ``build(plan.options[group], …)``."""
        return plugins.registry.get(kind_of(group), self.choices[group])

    def reference(self, group: str) -> ComponentRef:
        """The choice as it travels to workers; its options are field values by name."""
        options = self.options[group]
        values = {f.name: getattr(options, f.name) for f in fields(options) if f.init}
        return ComponentRef(kind_of(group), self.choices[group], values)

    # ------------------------------------------------------------------ JSON

    def to_json(self) -> dict[str, Any]:
        """JSON values from which :meth:`from_json` makes an equal plan."""
        return {
            "format": FORMAT,
            "run": to_plain(self.run),
            "choices": dict(self.choices),
            "options": {group: to_plain(options) for group, options in self.options.items()},
            "trackers": {name: to_plain(options) for name, options in self.trackers.items()},
            "overrides": list(self.overrides),
        }

    @classmethod
    def from_json(cls, data: "Mapping[str, Any] | str", plugins: "PluginSet") -> "RunPlan":
        """Rebuild a plan without Hydra.

        Args:
            data: what :meth:`to_json` gave, or its text.
            plugins: of this process; they must offer what was chosen.

        Raises:
            ConfigError: if the data are of another format or do not fit the options classes.
            PluginError: if a chosen component is not there.
        """
        values: Mapping[str, Any] = json.loads(data) if isinstance(data, str) else data
        if values.get("format") != FORMAT:
            raise ConfigError(
                f"the saved configuration has format {values.get('format')!r}, wanted {FORMAT}",
                hint="run it with the version of bestiary that wrote it (see its manifest.json)",
            )
        return build(
            run=values["run"],
            choices=values["choices"],
            options=values["options"],
            trackers=values["trackers"],
            overrides=tuple(values["overrides"]),
            catalog=Catalog(plugins),
        )


def build(
    *,
    run: Mapping[str, Any],
    choices: Mapping[str, str],
    options: Mapping[str, Mapping[str, Any]],
    trackers: Mapping[str, Mapping[str, Any]],
    overrides: tuple[str, ...],
    catalog: Catalog,
) -> RunPlan:
    """Make a plan from plain values, each checked against its dataclass.

    Raises:
        ConfigError: for the first value that is unknown, missing, of a wrong type or range.
        PluginError: if a chosen component is not there or its options are broken.
    """
    return RunPlan(
        run=instantiate(RunConfig, run, key="", owner=None),
        choices={group: choices[group] for group in GROUPS},
        options={g: _options(_choice(g, choices[g], catalog), options.get(g, {})) for g in GROUPS},
        trackers={
            name: _options(catalog.choice(MANY, name), values, f"{MANY}.{name}")
            for name, values in trackers.items()
        },
        overrides=overrides,
    )


def _choice(group: str, name: str, catalog: Catalog) -> Choice:
    if group == "model" and name not in catalog.names(group):
        # Saved by a run that was composed with a file of the user's, which a job does not need.
        return Choice(group, name, core_owner(), core=ModelOptions)
    return catalog.choice(group, name)


def _options(choice: Choice, values: Mapping[str, Any], key: str = "") -> Any:  # noqa: ANN401
    key = key or choice.group
    if not isinstance(values, Mapping):
        raise ConfigError(
            f"{key}={values!r}: the options of {choice} are wanted", hint=f"set {key}.KEY=VALUE"
        )
    return instantiate(
        choice.options_class(), values, key=key, owner=choice.owner, what=str(choice)
    )
