"""The flat error vocabulary, and the one boundary that attributes a failure to its plugin.

Every error says what was given, what is wanted, who owns it and what to do next. Plugin authors
raise plain Python errors; :func:`boundary` wraps them once, where the core calls the plugin.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

EXIT_USER = 2
"""Exit status of a command that refuses its input before anything has started."""

EXIT_FAILURE = 1
"""Exit status of a run that started and failed."""


@dataclass(frozen=True, slots=True)
class Owner:
    """Who provides a component: the plugin, its distribution and version."""

    plugin: str
    distribution: str
    version: str

    def __str__(self) -> str:
        return f"{self.plugin} ({self.distribution} {self.version})"


class BestiaryError(Exception):
    """Base of every error that the project raises on purpose.

    Args:
        message: what was given and what is wanted, one line where possible.
        hint: the next step, printed after the message.
        owner: who owns the component at fault, when one does.
    """

    exit_code = EXIT_FAILURE

    def __init__(self, message: str, *, hint: str = "", owner: Owner | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.owner = owner

    def __str__(self) -> str:
        text = self.message
        if self.owner is not None:
            text += f" [owner: {self.owner}]"
        if self.hint:
            text += f"\n  -> {self.hint}"
        return text

    def __reduce__(self) -> tuple[object, ...]:
        # Errors cross process borders; the default reduce would lose the keyword arguments.
        return _rebuild, (type(self), self.message, self.hint, self.owner)


def _rebuild(
    kind: type[BestiaryError], message: str, hint: str, owner: Owner | None
) -> BestiaryError:
    return kind(message, hint=hint, owner=owner)


class UserError(BestiaryError):
    """Input that is refused before anything has started."""

    exit_code = EXIT_USER


class ConfigError(UserError):
    """A configuration that cannot be run: unknown key, wrong type, range or combination."""


class PluginError(UserError):
    """A plugin that cannot be loaded, is blocked, missing, or breaks the contract of its hook."""


class DataError(UserError):
    """Prompts, columns or files that cannot be used as they are."""


class ModelError(UserError):
    """A model, tokenizer or chat template that cannot be loaded or does not fit its role."""


class CheckpointError(UserError):
    """A checkpoint that is incomplete, corrupt or made by another model, data set or plugin set."""


class PlacementError(UserError):
    """A demand for devices that the cluster cannot meet."""


class RewardError(BestiaryError):
    """A reward function that failed or broke its contract."""


class AlgorithmError(BestiaryError):
    """An algorithm, estimator, loss or sampler that failed or broke its contract."""


class EngineError(BestiaryError):
    """An engine that failed or was used outside its contract."""


class NumericalError(BestiaryError):
    """Non-finite numbers where training cannot go on."""


class WorkerFailure(BestiaryError):
    """A worker process that died, hung or raised; names rank, host and cause."""

    group = ""
    """The worker group, where one rank is to blame."""
    rank = -1
    host = ""


@contextmanager
def boundary(
    owner: Owner | None, doing: str, kind: type[BestiaryError] = PluginError
) -> Iterator[None]:
    """Attribute what a plugin raises to its owner.

    Errors of the project's own vocabulary pass unchanged (with the owner filled in when they have
    none); everything else is wrapped in ``kind`` with the original as its cause.

    Args:
        owner: the provider of the code that is being called.
        doing: what was being done, as in "calling reward 'exact'".
        kind: the class of the wrapping error.
    """
    try:
        yield
    except BestiaryError as error:
        if error.owner is None:
            error.owner = owner
        raise
    except Exception as error:
        raise kind(f"{doing} failed: {type(error).__name__}: {error}", owner=owner) from error
