"""Trace hook calls to the ordinary logger when ``BESTIARY_TRACE_PLUGINS=1``."""

import logging
from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pluggy import HookImpl, PluginManager, Result

TRACE = "BESTIARY_TRACE_PLUGINS"
logger = logging.getLogger("bestiary.plugins")


def wanted(environ: Mapping[str, str]) -> bool:
    """Whether the variable is set to something other than nothing, 0, no or false."""
    return environ.get(TRACE, "").strip().lower() not in ("", "0", "no", "false", "off")


def trace(pm: "PluginManager") -> None:
    """Log each hook call: its arguments, who implements it, how long it took, what came back."""
    logger.setLevel(logging.DEBUG)
    if not logger.hasHandlers():  # nothing is set up: the user who asked should see it
        logger.addHandler(logging.StreamHandler())
    started: list[float] = []

    def before(hook: str, methods: "Sequence[HookImpl]", arguments: Mapping[str, Any]) -> None:
        del hook, methods, arguments
        started.append(perf_counter())

    def after(
        outcome: "Result[Any]",
        hook: str,
        methods: "Sequence[HookImpl]",
        arguments: Mapping[str, Any],
    ) -> None:
        took_ms = 1000 * (perf_counter() - started.pop())
        names = ", ".join(method.plugin_name for method in methods) or "nobody"
        shown = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
        error = outcome.exception
        result = repr(outcome.get_result()) if error is None else f"raised {error!r}"
        logger.debug("%s(%s) by %s: %s in %.2f ms", hook, shown, names, result, took_ms)

    pm.add_hookcall_monitoring(before, after)
