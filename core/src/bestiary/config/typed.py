"""Plain values to frozen dataclasses, with messages that name key, value and wish.

Everything that comes out of YAML, the command line or JSON is made of null, booleans, numbers,
text, lists and mappings. Options classes say what they want by their annotations; nothing else
than these annotations and ``__post_init__`` decides what is accepted.
"""

import math
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from bestiary.config.plain import REQUIRED
from bestiary.config.suggest import did_you_mean, listing
from bestiary.errors import BestiaryError, ConfigError, Owner, PluginError

_FLOATS = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}
_UNIONS = (Union, types.UnionType)
_SEQUENCES: tuple[Any, ...] = (tuple, list, set, frozenset, Sequence)


class _Mismatch(Exception):
    def __init__(self, key: str, value: object, wanted: str) -> None:
        super().__init__(key, value, wanted)
        self.key, self.value, self.wanted = key, value, wanted


# --------------------------------------------------------------------------- descriptions


def describe(hint: Any) -> str:  # noqa: ANN401 - an annotation can be anything
    """An annotation in words: "a whole number", "one of a, b", "text or null"."""
    simple = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    if hint in simple:
        return simple[hint]
    if hint is None or hint is type(None):
        return "null"
    origin, args = get_origin(hint), get_args(hint)
    if origin is Literal:
        return "one of " + ", ".join(
            "null" if a is None else str(a).lower() if isinstance(a, bool) else str(a) for a in args
        )
    if origin in _UNIONS:
        return " or ".join(describe(a) for a in args)
    if origin is tuple and args and args[-1] is not Ellipsis:
        return "a list [" + ", ".join(describe(a) for a in args) + "]"
    if origin in _SEQUENCES or hint in _SEQUENCES:
        return f"a list, each {describe(args[0])}" if args else "a list"
    if origin in (dict, Mapping) or hint in (dict, Mapping):
        return "a mapping"
    if isinstance(hint, type) and is_dataclass(hint):
        return "a section with the keys " + listing([f.name for f in fields(hint)])
    if isinstance(hint, type) and issubclass(hint, Enum):
        return "one of " + ", ".join(m.name for m in hint)
    if hint is Path:
        return "a path"
    return getattr(hint, "__name__", str(hint))


def hints_of(cls: type, owner: Owner | None = None) -> dict[str, Any]:
    """Field annotations of a dataclass, resolved."""
    try:
        return {f.name: h for f in fields(cls) if f.init for h in [get_type_hints(cls)[f.name]]}
    except Exception as error:
        raise PluginError(
            f"the annotations of {cls.__module__}.{cls.__qualname__} cannot be resolved: {error}",
            hint="import the types at run time, not under TYPE_CHECKING only",
            owner=owner,
        ) from error


# --------------------------------------------------------------------------- plain -> typed


def instantiate(
    cls: type, data: Mapping[str, Any], *, key: str, owner: Owner | None, what: str = ""
) -> Any:  # noqa: ANN401 - an instance of cls
    """Build a dataclass from plain values.

    Args:
        cls: the dataclass; keys that ``data`` lacks take its defaults.
        data: plain values by field name.
        key: dotted place of ``data`` in the configuration, for messages; empty at the root.
        owner: who provides the class.
        what: how messages call the thing, as in ``algorithm=grpo``; default is ``key``.

    Raises:
        ConfigError: for an unknown key, a missing or wrong value, or one out of range.
    """
    try:
        return _section(cls, data, key, owner, what or key)
    except _Mismatch as error:
        raise ConfigError(
            f"{error.key}={_shown(error.value)}: wanted {error.wanted}",
            hint=_way_out(error),
            owner=owner,
        ) from None


def _section(cls: type, data: Mapping[str, Any], key: str, owner: Owner | None, what: str) -> Any:  # noqa: ANN401
    hints = hints_of(cls, owner)
    prefix = f"{key}." if key else ""
    for name in data:
        if name not in hints:
            raise ConfigError(
                f"{what or 'the configuration'} has no option '{name}'"
                + did_you_mean(str(name), hints, prefix),
                hint=f"options of {what or 'the root'}: {listing(list(hints))}",
                owner=owner,
            )
    values = {}
    for field in fields(cls):
        if not field.init:
            continue
        if field.name in data and data[field.name] != REQUIRED:
            place = prefix + field.name
            values[field.name] = _convert(data[field.name], hints[field.name], place, owner)
        elif field.default is MISSING and field.default_factory is MISSING:
            wanted = describe(hints[field.name])
            where = what or "the configuration"
            raise ConfigError(
                f"{prefix}{field.name} must be given ({where} wants {wanted})",
                hint=f"add {prefix}{field.name}=VALUE",
                owner=owner,
            )
    try:
        return cls(**values)
    except BestiaryError as error:
        error.owner = error.owner or owner
        error.message = _placed(error.message, key, what)
        raise
    except (ValueError, TypeError, ArithmeticError) as error:
        raise ConfigError(_placed(str(error), key, what), owner=owner) from error


def _placed(message: str, key: str, what: str) -> str:
    """A message of an options class, with what it is about unless it says so itself."""
    says = not what or what in message or message.startswith(f"{key}.")
    return message if says else f"{what}: {message}"


def _convert(
    value: object, hint: object, key: str, owner: Owner | None, exact: bool = False
) -> object:
    origin, args = get_origin(hint), get_args(hint)
    if hint is Any or hint is object:
        return value
    if origin in _UNIONS:
        return _convert_union(value, args, key, owner, hint)
    if origin is Literal:
        return _convert_literal(value, args, key, hint)
    if origin in _SEQUENCES or hint in _SEQUENCES:
        return _convert_sequence(value, origin or hint, args, key, owner, hint)
    if origin in (dict, Mapping) or hint in (dict, Mapping):
        return _convert_mapping(value, args, key, owner, hint)
    if isinstance(hint, type) and is_dataclass(hint):
        if not isinstance(value, Mapping):
            raise _Mismatch(key, value, describe(hint))
        return _section(hint, value, key, owner, key)
    converter = _SCALARS.get(hint)
    if converter is not None:
        return converter(value, key, exact)
    if isinstance(hint, type) and issubclass(hint, Enum):
        if isinstance(value, str) and value in hint.__members__:
            return hint[value]
        raise _Mismatch(key, value, describe(hint))
    raise PluginError(
        f"{key} is annotated as {describe(hint)}, which a configuration cannot express",
        hint="use numbers, text, booleans, Literal, tuples, mappings or nested dataclasses",
        owner=owner,
    )


def _convert_bool(value: object, key: str, exact: bool) -> bool:
    if isinstance(value, bool):
        return value
    raise _Mismatch(key, value, "true or false")


def _convert_int(value: object, key: str, exact: bool) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise _Mismatch(key, value, "a whole number")


def _convert_float(value: object, key: str, exact: bool) -> float:
    if isinstance(value, float) or (isinstance(value, int) and not isinstance(value, bool)):
        return float(value)
    if isinstance(value, str) and value in _FLOATS and not exact:
        return _FLOATS[value]  # JSON has no infinity: to_plain writes the word
    raise _Mismatch(key, value, "a number")


def _convert_str(value: object, key: str, exact: bool) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, int) and not isinstance(value, bool) and not exact:
        return str(value)
    raise _Mismatch(key, value, "text")


def _convert_path(value: object, key: str, exact: bool) -> Path:
    if isinstance(value, str | Path):
        return Path(value)
    raise _Mismatch(key, value, "a path")


def _convert_none(value: object, key: str, exact: bool) -> None:
    if value is not None:
        raise _Mismatch(key, value, "null")


_SCALARS: dict[object, Callable[[object, str, bool], object]] = {
    bool: _convert_bool,
    int: _convert_int,
    float: _convert_float,
    str: _convert_str,
    Path: _convert_path,
    type(None): _convert_none,
    None: _convert_none,
}


def _convert_union(
    value: object, arms: tuple[object, ...], key: str, owner: Owner | None, hint: object
) -> object:
    # First pass without coercion, so that 5 for "str | int" stays a number.
    for exact in (True, False):
        for arm in arms:
            try:
                return _convert(value, arm, key, owner, exact)
            except _Mismatch as error:
                if (
                    error.key != key
                ):  # inside an arm whose shape fits: that message is the better one
                    raise
    raise _Mismatch(key, value, describe(hint))


def _convert_literal(value: object, allowed: tuple[object, ...], key: str, hint: object) -> object:
    for option in allowed:
        if value == option and type(value) is type(option):
            return option
    wanted = describe(hint)
    if isinstance(value, str):
        wanted += did_you_mean(value, [a for a in allowed if isinstance(a, str)])
    raise _Mismatch(key, value, wanted)


def _convert_sequence(
    value: object,
    origin: object,
    args: tuple[object, ...],
    key: str,
    owner: Owner | None,
    hint: object,
) -> object:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise _Mismatch(key, value, describe(hint))
    if origin is tuple and args and args[-1] is not Ellipsis:
        if len(value) != len(args):
            raise _Mismatch(key, list(value), describe(hint))
        return tuple(
            _convert(v, a, f"{key}[{i}]", owner)
            for i, (v, a) in enumerate(zip(value, args, strict=True))
        )
    item = args[0] if args else Any
    items = [_convert(v, item, f"{key}[{i}]", owner) for i, v in enumerate(value)]
    if origin is list:
        return items
    if origin is set:
        return set(items)
    return frozenset(items) if origin is frozenset else tuple(items)


def _convert_mapping(
    value: object, args: tuple[object, ...], key: str, owner: Owner | None, hint: object
) -> object:
    if not isinstance(value, Mapping):
        raise _Mismatch(key, value, describe(hint))
    of_key, of_value = args or (Any, Any)
    return {
        _convert(k, of_key, f"{key} (a key)", owner): _convert(v, of_value, f"{key}.{k}", owner)
        for k, v in value.items()
    }


def _shown(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value)


def _way_out(error: _Mismatch) -> str:
    if error.wanted == "text" and isinstance(error.value, bool | float):
        text = str(error.value).lower() if isinstance(error.value, bool) else str(error.value)
        return f"to give it as text, quote it: {error.key}=\\'{text}\\'"
    if error.wanted.startswith("a section"):
        return f"set its keys one by one, as in {error.key}.KEY=VALUE"
    if error.wanted.startswith("a list"):
        return f"write a list with brackets: {error.key}=[a,b]"
    return ""
