"""What a run is, complete and checked: the same in the command line and in the job's process."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from bestiary.config.schema import GROUPS, MANY, MODELS, ModelOptions, RunConfig
from bestiary.config.typed import instantiate, to_plain
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

    def chosen(self, group: str) -> bool:
        """Whether a group has a component: not so for ``none``."""
        return self.choices[group] not in ("none", "task") and group != "model"

    def component(self, group: str, plugins: "PluginSet") -> "Component":
        """The chosen component of a group, to ``build(plan.options[group], …)``."""
        return plugins.registry.get(group, self.choices[group])

    def reference(self, group: str) -> ComponentRef:
        """The choice as it travels to workers; its options are field values by name."""
        options = self.options[group]
        values = {f.name: getattr(options, f.name) for f in fields(options) if f.init}
        return ComponentRef(group, self.choices[group], values)

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
            plugins=plugins,
        )


def build(
    *,
    run: Mapping[str, Any],
    choices: Mapping[str, str],
    options: Mapping[str, Mapping[str, Any]],
    trackers: Mapping[str, Mapping[str, Any]],
    overrides: tuple[str, ...],
    plugins: "PluginSet",
) -> RunPlan:
    """Make a plan from plain values, each checked against its dataclass.

    Raises:
        ConfigError: for the first value that is unknown, missing, of a wrong type or range.
        PluginError: if a chosen component is not there or its options are broken.
    """
    made = {
        group: _options(group, choices[group], options.get(group, {}), plugins) for group in GROUPS
    }
    followed = {
        name: _options(MANY, name, values, plugins, f"{MANY}.{name}")
        for name, values in trackers.items()
    }
    return RunPlan(
        run=instantiate(RunConfig, run, key="", owner=None),
        choices=MappingProxyType({group: choices[group] for group in GROUPS}),
        options=MappingProxyType(made),
        trackers=MappingProxyType(followed),
        overrides=overrides,
    )


def _options(
    group: str, name: str, values: Mapping[str, Any], plugins: "PluginSet", key: str = ""
) -> Any:  # noqa: ANN401 - each component has its own class
    from bestiary.config.catalog import Catalog, Choice, core_owner

    if group == "model" and name not in MODELS:  # from a file that this process need not have
        choice = Choice(group, name, core_owner(), core=ModelOptions)
    else:
        choice = Catalog(plugins).choice(group, name)
    cls = choice.options_class()
    return instantiate(cls, values, key=key or group, owner=choice.owner, what=str(choice))
