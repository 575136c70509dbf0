"""The two decorators of the project's hooks."""

from pluggy import HookimplMarker, HookspecMarker

PROJECT = "bestiary"
"""Project name for pluggy, entry-point group, and prefix of every hook."""

hookspec = HookspecMarker(PROJECT)
"""Marks a function of :mod:`bestiary.plugins.hookspecs` as the specification of a hook."""

hookimpl = HookimplMarker(PROJECT)
"""Marks a function of a plugin as the implementation of the hook of the same name."""
