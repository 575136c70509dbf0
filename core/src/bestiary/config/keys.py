"""Keys that no schema knows, wherever they came from, and what was meant by them."""

from collections.abc import Mapping, Sequence
from typing import Any

from hydra.core.override_parser.types import Override

from bestiary.config.catalog import Catalog, Choice
from bestiary.config.overrides import is_file_choice
from bestiary.config.schema import GROUPS, MANY, RunConfig
from bestiary.config.suggest import did_you_mean, listing
from bestiary.config.typed import hints_of
from bestiary.errors import ConfigError


def check_keys(
    values: Mapping[str, Any],
    choices: Mapping[str, str],
    parsed: Sequence[Override],
    catalog: Catalog,
) -> None:
    """Refuse keys outside of the schema.

    Values are checked later against the options classes; this sees what is no option at all.

    Args:
        values: everything that was composed, by top-level key.
        choices: the chosen option of each group.
        parsed: the words of the command line, to tell them from files.
        catalog: what there is.

    Raises:
        ConfigError: for the first unknown key, with what was meant.
    """
    known = [*hints_of(RunConfig), *catalog.groups]
    for key in values:
        if key in known:
            continue
        origin = _origin(key, parsed, catalog)
        if key in catalog.files:
            raise ConfigError(
                f"the settings of a file are under '{key}' and would have no effect{origin}",
                hint="start the file with the line `# @package _global_`",
            )
        raise ConfigError(
            f"there is no setting '{key}'{did_you_mean(key, known)}{origin}",
            hint=f"settings and groups: {listing(known)}",
        )
    for group in GROUPS:
        section = values.get(group, {})
        if not isinstance(section, dict):
            continue  # building the options says what is wanted
        choice = catalog.choice(group, choices[group])
        names = list(hints_of(choice.options_class(), choice.owner))
        for key, value in section.items():
            if key not in names:
                origin = _origin(f"{group}.{key}", parsed, catalog)
                raise _unknown_option(choice, str(key), value, names, origin, catalog)


def nothing_chosen(group: str, parsed: Sequence[Override], catalog: Catalog) -> ConfigError:
    """The error of a run without a choice in a group that needs one."""
    for override in parsed:
        head, _, second = override.key_or_group.partition(".")
        meant = _meant(group, second, override.value(), catalog) if head == group else ""
        if meant:
            return _dotted(str(override.input_line), group, meant, catalog)
    default = GROUPS.get(group, "")
    lost = f" (the default, '{default}', is not installed or blocked)" if default else ""
    return ConfigError(
        f"no {group} is chosen{lost}",
        hint=f"add {group}=NAME; options: {listing(catalog.described(group))}",
    )


def _unknown_option(
    choice: Choice, key: str, value: object, names: list[str], origin: str, catalog: Catalog
) -> ConfigError:
    group = choice.group
    meant = _meant(group, key, value, catalog)
    if meant:
        return _dotted(f"{group}.{key}", group, meant, catalog, origin)
    hint = f"options of {choice}: {listing(names)}"
    if not names:
        hint = f"{choice} takes no options. {choice.doc}".strip()
        if choice.component is None:
            hint += f" Choose another with {group}=NAME: {listing(catalog.described(group))}"
    return ConfigError(
        f"{choice} has no option '{key}'{did_you_mean(key, names, f'{group}.')}{origin}",
        hint=hint,
        owner=choice.owner,
    )


def _meant(group: str, key: str, value: object, catalog: Catalog) -> str:
    """The option that was meant by ``group.option`` or ``group.anything=option``."""
    if group not in catalog.groups or group == MANY:
        return ""
    names = catalog.names(group)
    if key in names:
        return key
    return value if isinstance(value, str) and value in names else ""


def _dotted(word: str, group: str, meant: str, catalog: Catalog, origin: str = "") -> ConfigError:
    return ConfigError(
        f"'{word}': a choice is written with the group alone; "
        f"did you mean '{group}={meant}'?{origin}",
        hint=f"options of {group}: {listing(catalog.described(group))}",
    )


def _origin(key: str, parsed: Sequence[Override], catalog: Catalog) -> str:
    """Where a key came from, when it was not the command line."""
    files = []
    for override in parsed:
        given = override.key_or_group
        if is_file_choice(override, catalog):
            files.append(str(override.input_line))
        elif given == key or given.startswith(f"{key}."):
            return ""
    return f" (from {', '.join(files)})" if files else ""
