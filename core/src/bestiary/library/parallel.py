"""``parallel_config``: how a model is laid out over its pool, as options of the training engine."""

from collections.abc import Mapping
from typing import Any, Final

from bestiary.config.suggest import did_you_mean
from bestiary.errors import ConfigError

_SHARD: Final = {
    "full_shard": {"shard": "full"},
    "no_shard": {"shard": "none"},
}


def engine_options(parallel_config: Mapping[str, Any] | None) -> dict[str, Any]:
    """Options of the engine ``fsdp`` for a layout.

    Args:
        parallel_config: ``{"fsdp": "full_shard"}`` shards weights, gradients and optimizer over
            the ranks (FSDP2); ``"no_shard"`` replicates them. None replicates.

    Raises:
        ConfigError: for a key or a value that there is not.
    """
    given = dict(parallel_config or {})
    how = given.pop("fsdp", "no_shard")
    if given:
        key = next(iter(given))
        raise ConfigError(
            f"parallel_config has no key {key!r}{did_you_mean(str(key), ['fsdp'])}",
            hint='for example {"fsdp": "full_shard"}',
        )
    if how not in _SHARD:
        raise ConfigError(
            f"parallel_config fsdp={how!r}: one of {', '.join(_SHARD)} is wanted"
            f"{did_you_mean(str(how), _SHARD)}"
        )
    return dict(_SHARD[how])
