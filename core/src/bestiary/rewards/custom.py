"""The reward ``custom``: a function by dotted path or in a file."""

import sys
from collections.abc import Callable, Sequence
from hashlib import blake2b
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from bestiary.errors import RewardError
from bestiary.protocols import Sample
from bestiary.rewards.options import CustomOptions


class CustomReward:
    """Calls ``function(samples, **kwargs)``.

    Args:
        options: where the function is.

    Attributes:
        name: the path as the user wrote it.
        digest: 16 hex digits of the file that it comes from, for the run's manifest.

    Raises:
        RewardError: if it cannot be found or called.
    """

    def __init__(self, options: CustomOptions) -> None:
        self.name = options.path
        module, attribute = _module(options.path)
        self.digest = file_digest(Path(module.__file__)) if module.__file__ else ""
        found: Any = module
        for part in attribute.split("."):
            if not hasattr(found, part):
                public = [n for n in vars(module) if not n.startswith("_")]
                raise RewardError(
                    f"reward {options.path!r}: there is no {attribute!r} in it",
                    hint=f"it has: {', '.join(public) or 'nothing'}",
                )
            found = getattr(found, part)
        if not callable(found):
            raise RewardError(
                f"reward {options.path!r} is a {type(found).__name__}, not a function"
            )
        self._kwargs = dict(options.kwargs)
        self._function: Callable[..., Any] = found
        if isinstance(found, type):
            self._function, self._kwargs = found(**self._kwargs), {}
        self.spans = bool(getattr(self._function, "spans", False))

    def __call__(self, samples: Sequence[Sample]) -> Any:  # noqa: ANN401 - checked by the caller
        """Whatever the function returns."""
        return self._function(samples, **self._kwargs)


def file_digest(file: Path) -> str:
    """16 hex digits of a file's content."""
    return blake2b(file.read_bytes(), digest_size=8).hexdigest()


def _module(path: str) -> tuple[ModuleType, str]:
    """The module of ``where:attribute``, and the attribute."""
    where, _, attribute = path.rpartition(":")
    if not where or not attribute:
        raise RewardError(
            f"reward path {path!r} names no function",
            hint="write package.module:function or path/to/file.py:function",
        )
    try:
        if where.endswith(".py"):
            return _from_file(Path(where).expanduser()), attribute
        return import_module(where), attribute
    except RewardError:
        raise
    except Exception as error:
        raise RewardError(
            f"reward {path!r}: importing {where} failed: {type(error).__name__}: {error}",
            hint="the module must be importable in the worker too",
        ) from error


def _from_file(file: Path) -> ModuleType:
    if not file.is_file():
        raise RewardError(f"reward file {str(file)!r} is not there")
    # The content is part of the name: an edited file is a new module, never a stale one.
    name = f"bestiary_reward_{file.stem}_{file_digest(file)}"
    if name in sys.modules:
        return sys.modules[name]
    spec = spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise RewardError(f"reward file {str(file)!r} is no Python source")
    module = module_from_spec(spec)
    sys.modules[name] = module  # before execution: dataclasses in the file look it up
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
