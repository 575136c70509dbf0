"""Call hooks so that what a plugin raises is attributed to it.

Each implementation is registered behind a guard. One observer that raises keeps the others
neither from being called nor from being heard.
"""

from collections.abc import Callable, Generator, Iterable
from contextvars import ContextVar
from functools import wraps
from inspect import isgeneratorfunction
from typing import Any

from pluggy import PluginManager

from bestiary.errors import BestiaryError, Owner, boundary
from bestiary.plugins.checking import Implementation
from bestiary.plugins.events import OBSERVERS, Event
from bestiary.plugins.markers import PROJECT

_failures: ContextVar[list[BestiaryError] | None] = ContextVar("failures", default=None)
"""Collects what observers raise during one call of :func:`observe`."""


class Guarded:
    """A plugin as pluggy sees it: its hooks behind guards, under its owner.

    Args:
        plugin: the module or object of the plugin.
        owner: whom failures are attributed to.
        found: the hooks that it implements.
    """

    def __init__(self, plugin: object, owner: Owner, found: Iterable[Implementation]) -> None:
        self.plugin = plugin
        self.owner = owner
        for number, implementation in enumerate(found):
            setattr(self, f"hook_{number}", _guard(implementation, owner))

    def __repr__(self) -> str:
        return f"<plugin {self.owner}>"


def observe(pm: PluginManager, event: Event) -> None:
    """Tell all observers of an event.

    Raises:
        BestiaryError: what the first failing observer raised, after all were called; failures of
            others are its notes.
    """
    failures: list[BestiaryError] = []
    token = _failures.set(failures)
    try:
        getattr(pm.hook, OBSERVERS[type(event)])(event=event)
    finally:
        _failures.reset(token)
    if failures:
        first, *others = failures
        for other in others:
            first.add_note(f"another observer failed too: {other}")
        raise first


def call_one(pm: PluginManager, hook: str, plugin: Guarded, **arguments: Any) -> list[Any]:  # noqa: ANN401 - each hook has its own
    """Call a hook of one plugin only, its own wrappers included."""
    others = [other for other in pm.get_plugins() if other is not plugin]
    result: list[Any] = pm.subset_hook_caller(hook, others)(**arguments)
    return result


def _guard(implementation: Implementation, owner: Owner) -> Callable[..., Any]:
    """The function of an implementation within a boundary, marked as it was."""
    function, hook = implementation.function, implementation.hook
    doing = f"hook {hook}"
    observes = hook in OBSERVERS.values()

    if isgeneratorfunction(function):  # a wrapper: pluggy wants a generator function

        @wraps(function)
        def guard(*arguments: Any) -> Generator[None, Any, Any]:  # noqa: ANN401
            with boundary(owner, doing):
                return (yield from function(*arguments))
    else:

        @wraps(function)
        def guard(*arguments: Any) -> Any:  # noqa: ANN401
            try:
                with boundary(owner, doing):
                    return function(*arguments)
            except BestiaryError as error:
                failures = _failures.get()
                if failures is None or not observes:
                    raise
                failures.append(error)
                return None

    # The mark carries the name, because the guard stands under another attribute.
    setattr(guard, f"{PROJECT}_impl", {**implementation.options, "specname": hook})
    return guard
