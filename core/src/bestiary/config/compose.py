"""From the words of a command line and YAML files to a checked plan, through Hydra."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra import compose, initialize, initialize_config_dir
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException, MissingConfigException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from bestiary.config import overrides as words_of
from bestiary.config.catalog import Catalog
from bestiary.config.keys import check_keys, nothing_chosen
from bestiary.config.plan import RunPlan, build
from bestiary.config.schema import GROUPS, MANY, RunConfig, TinyModelOptions, WarmStart
from bestiary.config.scorers import check_reward_files, resolve_scorers
from bestiary.config.source import CHOSEN, PRIMARY, visible
from bestiary.config.suggest import did_you_mean, listing
from bestiary.config.typed import hints_of
from bestiary.config.validate import check_requirements
from bestiary.errors import ConfigError, UserError

if TYPE_CHECKING:
    from bestiary.plugins.manager import PluginSet


def compose_run(
    overrides: Sequence[str],
    config_dir: Path | str | None = None,
    plugins: "PluginSet | None" = None,
) -> RunPlan:
    """Compose and check one run; nothing is started and nothing is written.

    Args:
        overrides: words as on the command line: ``algorithm=grpo``, ``loss.clip_high=0.28``,
            ``+experiment=NAME``.
        config_dir: folder with ``experiment/NAME.yaml`` and other files.
        plugins: the loaded plugins; default is to load those that are installed.

    Raises:
        UserError: one error for the first mistake, with the nearest right name.
    """
    return compose_all([overrides], config_dir, plugins)[0]


def compose_sweep(
    overrides: Sequence[str],
    config_dir: Path | str | None = None,
    plugins: "PluginSet | None" = None,
) -> list[RunPlan]:
    """Compose and check all runs that the words mean, before any of them starts.

    Raises:
        UserError: for the first mistake in any of them, naming the run.
    """
    catalog = _catalog(config_dir, plugins)
    jobs = words_of.expand(overrides, catalog)
    plans = []
    for number, job in enumerate(jobs, 1):
        try:
            plans.append(_compose(job, catalog))
        except UserError as error:
            if len(jobs) > 1:
                changed = " ".join(word for word in job if word not in overrides)
                error.message = f"run {number} of {len(jobs)} ({changed}): {error.message}"
            raise
    return plans


def compose_all(
    runs: Iterable[Sequence[str]],
    config_dir: Path | str | None = None,
    plugins: "PluginSet | None" = None,
) -> list[RunPlan]:
    """Compose several runs from one set of plugins."""
    catalog = _catalog(config_dir, plugins)
    return [_compose(run, catalog) for run in runs]


def _catalog(config_dir: Path | str | None, plugins: "PluginSet | None") -> Catalog:
    if plugins is None:
        from bestiary.plugins.manager import load_plugins

        plugins = load_plugins()
    return Catalog(plugins, Path(config_dir) if config_dir is not None else None)


def _compose(words: Sequence[str], catalog: Catalog) -> RunPlan:
    parsed = words_of.parse(words, catalog)
    words_of.refuse_sweeps(parsed)
    for override in parsed:
        words_of.check(override, catalog)
    composed = _composed(parsed, catalog)
    check_keys(composed.values, composed.choices, parsed, catalog)
    plan = build(
        run={key: composed.values[key] for key in hints_of(RunConfig) if key in composed.values},
        choices=composed.choices,
        options={group: composed.values.get(group, {}) for group in GROUPS},
        trackers=composed.trackers,
        overrides=tuple(words),
        catalog=catalog,
    )
    plan = _without_own_warm_start(resolve_scorers(plan, catalog))
    check_requirements(plan, catalog)
    check_reward_files(plan)
    return plan


def _without_own_warm_start(plan: RunPlan) -> RunPlan:
    """A supervised algorithm needs no supervised start, unless one was set up on purpose."""
    model = plan.model
    supervised = plan.algorithm.trains_from == "targets"
    if not (supervised and isinstance(model, TinyModelOptions) and model.warm_start == WarmStart()):
        return plan
    return replace(plan, options={**plan.options, "model": replace(model, warm_start=None)})


# --------------------------------------------------------------------------- Hydra


@dataclass(frozen=True, slots=True)
class _Composed:
    values: Mapping[str, Any]
    choices: Mapping[str, str]
    trackers: Mapping[str, Mapping[str, Any]]


def _composed(parsed: Sequence[Override], catalog: Catalog) -> _Composed:
    lines = [words_of.for_hydra(override, catalog) for override in parsed]
    folder = catalog.config_dir
    try:
        with visible(catalog):
            start = (
                initialize(config_path=None, version_base="1.3", job_name="bestiary")
                if folder is None
                else initialize_config_dir(str(folder), version_base="1.3", job_name="bestiary")
            )
            with start:
                config = compose(PRIMARY, lines, return_hydra_config=True)
        chosen = OmegaConf.to_container(config.hydra.runtime.choices)
        values = OmegaConf.to_container(
            OmegaConf.masked_copy(config, [str(key) for key in config if key != "hydra"]),
            resolve=True,
            throw_on_missing=False,
        )
    except (HydraException, OmegaConfBaseException, YAMLError, ValueError) as error:
        raise _translated(error, parsed, catalog) from error
    if not isinstance(chosen, dict) or not isinstance(values, dict):
        raise TypeError("Hydra composed something that is no mapping")
    return _Composed(
        values={str(key): value for key, value in values.items() if key != MANY},
        choices={group: str(chosen[group]) for group in GROUPS},
        trackers=_trackers(values.get(MANY, {}), catalog),
    )


def _trackers(section: Any, catalog: Catalog) -> dict[str, dict[str, Any]]:  # noqa: ANN401 - unchecked yet
    found = {}
    for name, values in section.items():
        if not isinstance(values, dict) or CHOSEN not in values:
            raise ConfigError(
                f"{MANY}.{name} is set, but the tracker '{name}' is not chosen"
                + ("" if name in catalog.names(MANY) else did_you_mean(name, catalog.names(MANY))),
                hint=f"add {MANY}=[{name}]; trackers: {listing(catalog.described(MANY))}",
            )
        found[str(name)] = {str(k): v for k, v in values.items() if k != CHOSEN}
    return found


def _translated(error: Exception, parsed: Sequence[Override], catalog: Catalog) -> ConfigError:
    """Hydra's error in the words of this project."""
    text = str(error)
    missing = re.search(r"You must specify '(\w+)'", text)
    if missing:
        return nothing_chosen(missing[1], parsed, catalog)
    if isinstance(error, MissingConfigException) and "/" in str(error.missing_cfg_file):
        group, _, name = str(error.missing_cfg_file).partition("/")
        if group in catalog.groups:
            catalog.choice(group, name)  # raises, with all options and who provides each
    if isinstance(error, YAMLError):
        return ConfigError("a YAML file cannot be read: " + " ".join(text.split()))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    cause = error.__cause__
    if cause is not None and str(cause):
        lines.append(str(cause).splitlines()[0])
    return ConfigError("the configuration cannot be composed: " + "; ".join(lines[:3]))
