"""Options of the built-in rewards."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bestiary.errors import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True)
class ExactMatchOptions:
    """1 for a response that is an accepted answer, apart from space at its ends."""

    ignore_case: bool = False
    """Compare without regard to upper and lower case."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LastNumberOptions:
    """1 for a response whose last number equals an accepted answer."""

    tolerance: float = 0.0
    """Largest absolute difference that counts as equal."""

    def __post_init__(self) -> None:
        if not self.tolerance >= 0.0:
            raise ConfigError(f"tolerance={self.tolerance}: must be at least 0")


@dataclass(frozen=True, kw_only=True, slots=True)
class FormatOptions:
    """1 for a response that has a form, whatever its length and content."""

    pattern: str = r"\s*-?\d+\s*"
    """Regular expression that must match the whole response (``.`` matches line ends)."""

    def __post_init__(self) -> None:
        try:
            re.compile(self.pattern)
        except re.error as error:
            raise ConfigError(
                f"pattern={self.pattern!r} is no regular expression: {error}"
            ) from None


@dataclass(frozen=True, kw_only=True, slots=True)
class CustomOptions:
    """A function of one's own: no package needed."""

    path: str = ""
    """``package.module:function`` or ``path/to/file.py:function``; must be given. A class is made
    with ``kwargs`` and then called."""
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments beside the samples."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SumOptions:
    """Several rewards at once; ``advantage=gdpo`` sees each as a part."""

    of: tuple[str, ...] = ()
    """Names of registered rewards, or ``file.py:function``; must be given."""
    weights: Mapping[str, float] = field(default_factory=dict)
    """Weight of each; 1 where it is not named."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of each, by its name."""
