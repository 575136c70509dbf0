"""The command line's ``key=value`` words: reading, refusing and expanding them.

Hydra accepts ``+typo=1`` as a new key and knows nothing of ``algorithm.grpo``; what can be told
from the words alone is refused here, everything else after composing (see compose.py), where
keys that came from files are seen as well.
"""

from collections.abc import Iterator, Sequence
from itertools import product
from typing import cast

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, Override, ValueType
from hydra.errors import HydraException

from bestiary.config.catalog import Catalog
from bestiary.config.schema import MANY, RunConfig, kind_of
from bestiary.config.suggest import did_you_mean, listing
from bestiary.config.typed import hints_of
from bestiary.errors import ConfigError

EXPERIMENT = "experiment"
"""The folder of a config folder that ready-made runs stand in."""


def parse(words: Sequence[str], catalog: Catalog) -> list[Override]:
    """Read override words in Hydra's grammar.

    Raises:
        ConfigError: for a word that is none, with the likeliest meaning.
    """
    parser = OverridesParser.create()
    parsed = []
    for word in words:
        if "=" not in word and not word.startswith("~"):
            raise ConfigError(
                f"'{word}' is not a setting: key=value is wanted", hint=_meant(word, catalog)
            )
        try:
            parsed.append(parser.parse_override(word))
        except HydraException as error:
            reason = str(error).splitlines()[0]
            raise ConfigError(
                f"cannot read '{word}': {reason}",
                hint="quote values with special characters twice: key=\"'a value, with: signs'\"",
            ) from None
    return parsed


def check(override: Override, catalog: Catalog) -> None:
    """Refuse what can be told to be wrong from the word alone.

    Raises:
        ConfigError: naming the word and the right form.
    """
    word, key = str(override.input_line), override.key_or_group
    head = key.replace("/", ".").split(".")[0]
    if override.is_delete():
        hint = f"{MANY}=[] chooses no tracker" if head == MANY else f"set it instead: {key}=VALUE"
        raise ConfigError(f"'{word}': nothing can be taken out of the configuration", hint=hint)
    if head == "hydra":
        raise ConfigError(
            f"'{word}': Hydra's own settings have no effect here",
            hint="the run's folder is run_dir=PATH; sweeps are -m with key=a,b",
        )
    if override.package is not None:
        raise ConfigError(
            f"'{word}': a choice cannot be moved to another place", hint=f"write {key}=NAME"
        )
    if key in catalog.groups:
        _check_choice(override, catalog, word)
    elif is_file_choice(override, catalog):
        _check_file(override, catalog, word)
    elif head in catalog.groups and "/" in key:
        _check_slashed(override, catalog, word)
    elif head in catalog.groups:
        return  # which keys there are depends on the choice: see compose.py
    elif head not in hints_of(RunConfig):
        known = [*hints_of(RunConfig), *catalog.groups]
        raise ConfigError(
            f"'{word}': there is no setting '{head}'" + did_you_mean(head, known),
            hint=f"settings and groups: {listing(known)}; see bestiary train --info",
        )


def is_file_choice(override: Override, catalog: Catalog) -> bool:
    """Whether a word chooses a YAML file, as ``+experiment=NAME`` does."""
    key = override.key_or_group
    if override.is_force_add() or isinstance(override.value(), dict):
        return False
    return key in catalog.files or (override.is_add() and key == EXPERIMENT)


def for_hydra(override: Override, catalog: Catalog) -> str:
    """The word as it is given to Hydra.

    Values are forced in, so that a wrong key is found by the same check, with the same message,
    whether it was written plainly, with ``+`` or in a file.
    """
    key, word = override.key_or_group, str(override.input_line)
    if key in catalog.groups or is_file_choice(override, catalog):
        return word
    return f"++{key}={override.get_value_string()}"


def expand(words: Sequence[str], catalog: Catalog) -> list[list[str]]:
    """All jobs of a sweep, the last swept word varying fastest.

    ``a,b``, ``choice(…)``, ``range(…)`` and, for groups, ``glob(…)`` are swept; ``glob`` sees
    the options of every plugin.

    Raises:
        ConfigError: for a sweep that has no values or cannot be enumerated.
    """
    return [list(job) for job in product(*(_values(o, catalog) for o in parse(words, catalog)))]


def refuse_sweeps(parsed: Sequence[Override]) -> None:
    """Refuse words that mean several runs.

    Raises:
        ConfigError: naming the first.
    """
    for override in parsed:
        if override.is_sweep_override():
            raise ConfigError(
                f"'{override.input_line}' means several runs",
                hint="add -m to run them all; for one list value write key=[a,b]",
            )


# --------------------------------------------------------------------------- parts


def _values(override: Override, catalog: Catalog) -> list[str]:
    word = str(override.input_line)
    if not override.is_sweep_override():
        return [word]
    left = word.split("=", 1)[0]
    if override.value_type == ValueType.INTERVAL_SWEEP:
        raise ConfigError(
            f"'{word}': an interval has no list of values", hint="use range(a,b,step)"
        )
    if override.value_type == ValueType.GLOB_CHOICE_SWEEP:
        values: Iterator[str] = iter(_globbed(override, catalog))
    else:
        values = override.sweep_string_iterator()
    found = [f"{left}={value}" for value in values]
    if not found:
        raise ConfigError(f"'{word}' has no values")
    return found


def _globbed(override: Override, catalog: Catalog) -> list[str]:
    group, word, glob = override.key_or_group, override.input_line, override.value()
    if group in catalog.files:
        names = catalog.files[group]
    elif group == "model":
        names = catalog.names(group)
    elif group in catalog.groups:
        # Without "none" and "task": they are no components.
        names = catalog.registry.names(kind_of(group))
    else:
        raise ConfigError(
            f"'{word}': glob chooses among the options of a group, '{group}' is none",
            hint=f"groups: {listing(catalog.groups)}",
        )
    found = cast("Glob", glob).filter(names)
    if not found:
        raise ConfigError(f"'{word}' matches nothing", hint=f"options: {listing(names)}")
    return found


def _meant(word: str, catalog: Catalog) -> str:
    head, _, tail = word.lstrip("+").replace("/", ".").partition(".")
    if head in catalog.groups and tail in catalog.names(head):
        return f"did you mean {head}={tail}?"
    owners = [group for group in catalog.groups if word in catalog.names(group)]
    if owners:
        return "did you mean " + " or ".join(f"{group}={word}" for group in owners) + "?"
    for folder, names in catalog.files.items():
        if word in names:
            return f"did you mean +{folder}={word}?"
    return "see bestiary train --help"


def _check_choice(override: Override, catalog: Catalog, word: str) -> None:
    group, value = override.key_or_group, override.value()
    right = f"{group}=[NAME,…]" if group == MANY else f"{group}=NAME"
    if not override.is_sweep_override():
        names = value if isinstance(value, list) else [value]
        if isinstance(value, list) and group != MANY:
            raise ConfigError(
                f"'{word}': the group '{group}' takes one choice, not a list",
                hint=f"several runs: -m {group}=a,b",
            )
        if value is None and "none" in catalog.names(group):
            raise ConfigError(f"'{word}': a name is wanted; did you mean '{group}=none'?")
        for name in names:
            if not isinstance(name, str):
                raise ConfigError(
                    f"'{word}': a name from the group '{group}' is wanted",
                    hint=f"{right}; options: {listing(catalog.described(group))}",
                )
            catalog.choice(group, name)
    if override.is_add() or override.is_force_add():
        plain = word.lstrip("+")
        raise ConfigError(
            f"'{word}': every run has the group '{group}'; did you mean '{plain}'?",
            hint="+ is for files only, as in +experiment=NAME",
        )


def _check_slashed(override: Override, catalog: Catalog, word: str) -> None:
    group, _, tail = override.key_or_group.partition("/")
    meant = f"; did you mean '{group}={tail}'?" if tail in catalog.names(group) else ""
    raise ConfigError(
        f"'{word}': a choice is written {group}=NAME{meant}",
        hint=f"options of {group}: {listing(catalog.described(group))}",
    )


def _check_file(override: Override, catalog: Catalog, word: str) -> None:
    folder = override.key_or_group
    names = catalog.files.get(folder, [])
    if not names:
        where = "no --config-dir was given"
        if catalog.config_dir is not None:
            where = f"{catalog.config_dir} has no folder {folder} with YAML files"
        raise ConfigError(
            f"'{word}': {where}", hint="add --config-dir DIR, the folder that holds experiment/"
        )
    if override.is_sweep_override():
        return
    value = str(override.value())
    if value not in names:
        raise ConfigError(
            f"'{word}': no file {folder}/{value}.yaml" + did_you_mean(value, names, f"+{folder}="),
            hint=f"files: {listing(names)}",
        )
    if not override.is_add():
        raise ConfigError(
            f"'{word}': files are chosen with a plus; did you mean '+{folder}={value}'?"
        )
