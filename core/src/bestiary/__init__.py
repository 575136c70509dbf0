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
    from bestiary.distributed.pools import ResourcePool
    from bestiary.distributed.traffic import driver_bytes
    from bestiary.errors import BestiaryError
    from bestiary.library.advantages import Advantage
    from bestiary.library.models import Actor, Critic, ReferencePolicy
    from bestiary.library.prompts import load_prompts
    from bestiary.library.scorers import CostModel, RewardModel
    from bestiary.library.workbench import setup, shutdown
    from bestiary.plugins.markers import hookimpl
    from bestiary.plugins.registry import Registry
    from bestiary.protocols import Algorithm, Role, Sampling, Score, Term

_HOMES = {
    "Actor": "bestiary.library.models",
    "Advantage": "bestiary.library.advantages",
    "Algorithm": "bestiary.protocols",
    "Batch": "bestiary.batch",
    "BestiaryError": "bestiary.errors",
    "CostModel": "bestiary.library.scorers",
    "Critic": "bestiary.library.models",
    "ReferencePolicy": "bestiary.library.models",
    "Registry": "bestiary.plugins.registry",
    "ResourcePool": "bestiary.distributed.pools",
    "RewardModel": "bestiary.library.scorers",
    "Role": "bestiary.protocols",
    "Sampling": "bestiary.protocols",
    "Score": "bestiary.protocols",
    "Term": "bestiary.protocols",
    "driver_bytes": "bestiary.distributed.traffic",
    "hookimpl": "bestiary.plugins.markers",
    "load_prompts": "bestiary.library.prompts",
    "setup": "bestiary.library.workbench",
    "shutdown": "bestiary.library.workbench",
}

__all__ = [
    "Actor",
    "Advantage",
    "Algorithm",
    "Batch",
    "BestiaryError",
    "CostModel",
    "Critic",
    "ReferencePolicy",
    "Registry",
    "ResourcePool",
    "RewardModel",
    "Role",
    "Sampling",
    "Score",
    "Term",
    "__version__",
    "driver_bytes",
    "hookimpl",
    "load_prompts",
    "setup",
    "shutdown",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - PEP 562: the type depends on the name
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'bestiary' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
