"""From a component reference, or what a user writes, to a reward that can be called."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bestiary.errors import Owner, RewardError
from bestiary.protocols import ComponentRef, Sample

if TYPE_CHECKING:
    from bestiary.plugins.manager import PluginSet


@dataclass(frozen=True, slots=True)
class LoadedReward:
    """A reward function with its name.

    Args:
        name: what messages call it.
        function: samples → one entry for each of them.
        owner: who provides it.
        digest: of the file that a custom one comes from; else empty.
    """

    name: str
    function: Callable[[Sequence[Sample]], Any]
    owner: Owner | None = None
    digest: str = ""


def reward_ref(text: str) -> ComponentRef:
    """A registered name, ``package.module:function`` or ``file.py:function`` as a reference."""
    if ":" in text:
        return ComponentRef("reward", "custom", {"path": text})
    return ComponentRef("reward", text)


def load_reward(ref: ComponentRef, plugins: "PluginSet") -> LoadedReward:
    """Build a reward in this process.

    Args:
        ref: kind ``reward``; the options are plain values.
        plugins: of this process.

    Raises:
        RewardError: if the reward cannot be built with these options.
    """
    component = plugins.registry.get("reward", ref.name)
    try:
        options = component.options_class()(**ref.options)
    except TypeError as error:
        raise RewardError(
            f"reward {ref.name!r} does not take these options: {error}", owner=component.owner
        ) from error
    built = component.build(options)
    return LoadedReward(
        name=str(getattr(built, "name", "") or ref.name),
        function=built,
        owner=component.owner,
        digest=str(getattr(built, "digest", "")),
    )
