"""What all suites share: the component by name, and what its options have to be."""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any, ClassVar

from bestiary.config.docs import field_docs
from bestiary.plugins.component import Component
from bestiary.plugins.manager import PluginSet, load_plugins


class Suite:
    """Base of the suites; a subclass sets ``component`` and, where defaults lack, ``options``."""

    kind: ClassVar[str]
    component: ClassVar[str] = ""
    """Registered name."""
    options: ClassVar[Mapping[str, Any]] = {}
    """Options that must be given, or that make the component testable."""

    @classmethod
    def plugins(cls) -> PluginSet:
        """The installed plugins."""
        return load_plugins()

    @classmethod
    def found(cls) -> Component:
        """The component under test."""
        assert cls.component, f"{cls.__name__}: set `component` to the registered name"
        return cls.plugins().registry.get(cls.kind, cls.component)

    @classmethod
    def made_options(cls) -> Any:  # noqa: ANN401 - each component has its own
        """Its options."""
        return cls.found().options_class()(**cls.options)

    @classmethod
    def build(cls, *args: Any) -> Any:  # noqa: ANN401 - each component has its own
        """The component itself."""
        return cls.found().build(cls.made_options(), *args)

    def test_options_are_a_frozen_dataclass_with_documented_fields(self) -> None:
        """Options can be shown by ``--info``, hashed into a cache key, and never change."""
        options = self.found().options_class()
        assert dataclasses.is_dataclass(options), f"{options} is no dataclass"
        assert options.__dataclass_params__.frozen, f"{options.__name__} is not frozen"  # type: ignore[attr-defined]
        docs = field_docs(options)
        bare = [f.name for f in dataclasses.fields(options) if f.init and not docs.get(f.name)]
        assert not bare, f"{options.__name__}: no docstring under {', '.join(bare)}"
        assert options.__doc__, f"{options.__name__} has no docstring"

    def test_it_is_built_from_its_options(self) -> None:
        """The component exists, and its options have plain values."""
        values = dataclasses.asdict(self.made_options())
        json.dumps(values, default=list)
        assert self.found().load() is not None
