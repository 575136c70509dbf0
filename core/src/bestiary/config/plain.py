"""Configuration values as JSON values, the inverse of :mod:`bestiary.config.typed`."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Final

from bestiary.errors import Owner, PluginError

REQUIRED: Final = "???"
"""Stands for a value that the user has to give, as in OmegaConf."""


def to_plain(value: Any) -> Any:  # noqa: ANN401 - any configuration value
    """JSON values of a configuration value; the inverse of the conversions above."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_plain(getattr(value, f.name)) for f in fields(value) if f.init}
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {str(k): to_plain(v) for k, v in value.items()}
    if isinstance(value, set | frozenset):
        return sorted(to_plain(v) for v in value)
    if isinstance(value, Sequence):
        return [to_plain(v) for v in value]
    raise TypeError(f"a configuration cannot hold {type(value).__name__}: {value!r}")


def defaults_of(cls: type, owner: Owner | None = None) -> dict[str, Any]:
    """Plain default values of a dataclass; :data:`REQUIRED` where there is none."""
    if not is_dataclass(cls):
        raise PluginError(
            f"the options class {cls.__module__}.{cls.__qualname__} is not a dataclass",
            hint="decorate it with @dataclass(frozen=True, kw_only=True, slots=True)",
            owner=owner,
        )
    plain: dict[str, Any] = {}
    for field in fields(cls):
        if not field.init:
            continue
        if field.default is not MISSING:
            plain[field.name] = to_plain(field.default)
        elif field.default_factory is not MISSING:
            plain[field.name] = to_plain(field.default_factory())
        else:
            plain[field.name] = REQUIRED
    return plain


def escaped(value: Any) -> Any:  # noqa: ANN401 - plain values
    """Plain values in which ``${`` is literal for OmegaConf, and no interpolation."""
    if isinstance(value, str):
        return value.replace("${", "\\${")
    if isinstance(value, dict):
        return {key: escaped(item) for key, item in value.items()}
    if isinstance(value, list):
        return [escaped(item) for item in value]
    return value
