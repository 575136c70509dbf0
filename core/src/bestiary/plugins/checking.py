"""Find what is wrong with a plugin's hooks before they are registered.

pluggy calls a misspelt or undecorated hook never, and says so only to those who ask. Here each
such plugin gets a message with the nearest right name.
"""

import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, cast

from pluggy import HookimplOpts, PluginManager

from bestiary.errors import PluginError
from bestiary.plugins.hookspecs import API_VERSION
from bestiary.plugins.markers import PROJECT
from bestiary.plugins.names import did_you_mean, nearest


@dataclass(frozen=True, slots=True)
class Implementation:
    """A function of a plugin that implements a hook."""

    hook: str
    function: Callable[..., Any]
    options: HookimplOpts


def known_hooks(pm: PluginManager) -> dict[str, tuple[str, ...]]:
    """The hooks that are specified, with their arguments."""
    callers = {name: caller for name, caller in vars(pm.hook).items() if _specified(caller)}
    return {name: tuple(caller.spec.argnames) for name, caller in sorted(callers.items())}


def implementations(pm: PluginManager, plugin: object) -> list[Implementation]:
    """The hooks that a plugin implements.

    Args:
        pm: has the specifications.
        plugin: what the entry point names: a module, or an object with hooks as methods.

    Raises:
        PluginError: on the first fault, saying which hook and what the nearest right name is.
    """
    hooks = known_hooks(pm)
    if inspect.isclass(plugin):
        raise PluginError(
            f"the entry point names the class {plugin.__name__}",
            hint="name a module, or an instance, whose functions are marked with @hookimpl",
        )
    check_api(getattr(plugin, "BESTIARY_API", None))
    found = []
    for name in sorted(dir(plugin)):
        function = getattr(plugin, name, None)
        options = pm.parse_hookimpl_opts(plugin, name) if inspect.isroutine(function) else None
        if options is None:
            _refuse_undecorated(plugin, name, function, hooks)
            continue
        hook = options.get("specname") or name
        if hook in hooks:
            implementation = Implementation(hook, cast("Callable[..., Any]", function), options)
            _check_function(implementation, hooks[hook])
            found.append(implementation)
        elif not options.get("optionalhook"):
            raise PluginError(
                f"unknown hook {hook!r}{_suggest(hook, hooks)}",
                hint=f"there are: {', '.join(hooks)}; a hook of a later version is marked "
                "@hookimpl(optionalhook=True)",
            )
    if not found:
        raise PluginError(
            f"implements no known hook; there are: {', '.join(hooks)}",
            hint="define bestiary_register(registry) with @hookimpl from bestiary",
        )
    return found


def check_api(declared: object) -> None:
    """Compare the ``BESTIARY_API`` of a plugin with the hooks that there are.

    Raises:
        PluginError: if they do not fit, saying which side to upgrade.
    """
    if declared is None:
        return
    match = re.fullmatch(r"(\d+)(?:\.(\d+))?", str(declared))
    if match is None:
        raise PluginError(
            f"BESTIARY_API = {declared!r} is not a version",
            hint=f'write BESTIARY_API = "{API_VERSION}"',
        )
    major, minor = int(match[1]), int(match[2] or 0)
    own_major, own_minor = (int(part) for part in API_VERSION.split("."))
    if (major, minor) > (own_major, own_minor):
        raise PluginError(
            f"was written for hooks of version {declared}, here are {API_VERSION}",
            hint="upgrade bestiary",
        )
    if major < own_major:
        raise PluginError(
            f"was written for hooks of version {declared}, here are {API_VERSION}",
            hint="upgrade the plugin",
        )


def _nearest(name: str, hooks: Iterable[str]) -> list[str]:
    """The hooks that a name may mean; the prefix, which all share, says nothing."""
    prefix = f"{PROJECT}_"
    near = nearest(name.removeprefix(prefix), [hook.removeprefix(prefix) for hook in hooks])
    return [prefix + hook for hook in near]


def _suggest(name: str, hooks: Iterable[str]) -> str:
    near = _nearest(name, hooks)
    return f"; did you mean {' or '.join(map(repr, near))}?" if near else ""


def _specified(caller: object) -> bool:
    return getattr(caller, "spec", None) is not None


def _refuse_undecorated(
    plugin: object, name: str, function: object, hooks: dict[str, tuple[str, ...]]
) -> None:
    """Refuse a function of the plugin's own that is named like a hook and lacks the marker."""
    if not name.startswith(f"{PROJECT}_") or not inspect.isroutine(function):
        return
    home = getattr(plugin, "__name__", type(plugin).__module__)
    if getattr(function, "__module__", home) != home:
        return
    near = [name] if name in hooks else _nearest(name, hooks)
    if near:
        right = "" if name in hooks else f" and is not a hook{_suggest(name, hooks)}"
        raise PluginError(
            f"function {name!r} is not decorated with @hookimpl, so it is never called{right}",
            hint=f"write @hookimpl above def {near[0]}({', '.join(hooks[near[0]])}), or rename "
            "the function",
        )


def _check_function(it: Implementation, wanted: tuple[str, ...]) -> None:
    """Refuse a function that pluggy would call wrongly or without effect."""
    should = f"{it.hook}({', '.join(wanted)})"
    for fault, hint in _faults(it.function, it.options, wanted):
        raise PluginError(f"hook {it.hook!r} {fault}", hint=f"{hint}; the hook is {should}")


def _faults(
    function: Callable[..., Any], options: HookimplOpts, wanted: tuple[str, ...]
) -> Iterator[tuple[str, str]]:
    """(what is wrong, what to do) for each fault of an implementation."""
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            yield f"takes *{parameter.name}, and hooks get named arguments", "name them"
        elif parameter.name not in wanted:
            near = did_you_mean(parameter.name, wanted)
            yield f"has no argument {parameter.name!r}{near}", "rename or remove it"
        elif parameter.kind is parameter.KEYWORD_ONLY:
            yield f"argument {parameter.name!r} is keyword-only", "remove the '*'"
        elif parameter.default is not parameter.empty:
            # pluggy passes only arguments without a default.
            yield f"argument {parameter.name!r} has a default and is never passed", "remove it"
    if options.get("hookwrapper"):
        yield "is an old-style wrapper", "write @hookimpl(wrapper=True)"
    if options.get("wrapper"):
        if not inspect.isgeneratorfunction(function):
            yield "is a wrapper without yield", "yield once and return the result"
    elif inspect.iscoroutinefunction(function):
        yield "is a coroutine function, which is never awaited", "write def in place of async def"
    elif inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        yield "is a generator, whose body never runs", "return in place of yield"
