"""A zoo of LLM post-training algorithms on one shared distributed core.

The public names are loaded when first used: importing ``bestiary`` loads no torch, ray, vllm or
transformers.
"""

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

try:
    __version__ = version("bestiary")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0.0.0+unknown"

if TYPE_CHECKING:
    from bestiary.batch import Batch
    from bestiary.errors import BestiaryError
    from bestiary.plugins.markers import hookimpl
    from bestiary.plugins.registry import Registry
    from bestiary.protocols import Algorithm, Role, Sampling, Score, Term

_HOMES = {
    "Algorithm": "bestiary.protocols",
    "Batch": "bestiary.batch",
    "BestiaryError": "bestiary.errors",
    "Registry": "bestiary.plugins.registry",
    "Role": "bestiary.protocols",
    "Sampling": "bestiary.protocols",
    "Score": "bestiary.protocols",
    "Term": "bestiary.protocols",
    "hookimpl": "bestiary.plugins.markers",
}

__all__ = [
    "Algorithm",
    "Batch",
    "BestiaryError",
    "Registry",
    "Role",
    "Sampling",
    "Score",
    "Term",
    "__version__",
    "hookimpl",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - PEP 562: the type depends on the name
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'bestiary' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
