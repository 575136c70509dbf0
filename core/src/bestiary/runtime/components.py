"""From a component's name and plain options to the object, in any process."""

from typing import TYPE_CHECKING, Any

from bestiary.errors import AlgorithmError, ConfigError, Owner, boundary
from bestiary.protocols import ComponentRef

if TYPE_CHECKING:
    from bestiary.plugins.manager import PluginSet


class Components:
    """Builds components from references; keeps what it built of losses and options.

    Args:
        plugins: the plugin set of this process.
    """

    def __init__(self, plugins: "PluginSet") -> None:
        self.plugins = plugins
        self._options: dict[tuple[str, str, str], Any] = {}
        self._losses: dict[tuple[str, str, str], Any] = {}

    def owner(self, ref: ComponentRef) -> Owner:
        """Who provides the component."""
        return self.plugins.registry.get(ref.kind, ref.name).owner

    def options(self, ref: ComponentRef) -> Any:  # noqa: ANN401 - each component has its own
        """The validated options object of a reference."""
        key = _key(ref)
        if key not in self._options:
            component = self.plugins.registry.get(ref.kind, ref.name)
            cls = component.options_class()
            known = set(getattr(cls, "__dataclass_fields__", {}))
            unknown = sorted(set(ref.options) - known)
            if unknown:
                raise ConfigError(
                    f"{ref} has no options {unknown}; it has {sorted(known)}",
                    owner=component.owner,
                )
            with boundary(component.owner, f"checking the options of {ref}", ConfigError):
                self._options[key] = cls(**ref.options)
        return self._options[key]

    def build(self, ref: ComponentRef, *args: Any) -> Any:  # noqa: ANN401
        """The component itself: ``target(options, *args)``."""
        component = self.plugins.registry.get(ref.kind, ref.name)
        return component.build(self.options(ref), *args)

    def loss(self, ref: ComponentRef) -> Any:  # noqa: ANN401
        """A loss, built once for each name and options, with its options and owner."""
        key = _key(ref)
        if key not in self._losses:
            loss = self.build(ref)
            if not callable(loss):
                raise AlgorithmError(f"{ref} is not callable", owner=self.owner(ref))
            self._losses[key] = loss
        return self._losses[key]


def _key(ref: ComponentRef) -> tuple[str, str, str]:
    return ref.kind, ref.name, repr(sorted(ref.options.items()))
