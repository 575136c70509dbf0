"""A model on the controller's side: which worker group holds it, under what name."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from bestiary.batch import Handle
from bestiary.roles.services import Report


class Call(Handle, Protocol):
    """The answer of one rank to one call: a block, its table and a report."""

    def report(self) -> Report:
        """Wait for the call and return its report."""
        ...


class Group(Protocol):
    """A worker group, remote or in this process."""

    @property
    def size(self) -> int:
        """Number of ranks."""
        ...

    def call(self, method: str, per_rank_args: Sequence[tuple[Any, ...]]) -> Sequence[Call]:
        """Call a method on every rank at once; returns without waiting."""
        ...

    def run(self, method: str, *args: Any) -> Sequence[Any]:  # noqa: ANN401 - plain results
        """Call a method with the same arguments on every rank and wait for the results."""
        ...


@dataclass(slots=True)
class Model:
    """One module in one worker group; roles are views of it.

    Args:
        name: the name under which the workers know it.
        group: the worker group that holds it.
        tokens_per_micro: token budget of a micro-batch.
        max_length: longest prompt with response that the model can take, in tokens.
        width: hidden size, from which the cost of attention is estimated; 0 leaves it out.
    """

    name: str
    group: Group
    tokens_per_micro: int
    max_length: int = 0
    width: int = 0

    @property
    def quadratic(self) -> float:
        """Cost of attention beside that of the linear layers, for each token squared."""
        return 1.0 / (12.0 * self.width) if self.width else 0.0

    def learn_sizes(self) -> None:
        """Take the limits and sizes from what the workers say."""
        state = self.state()[0]
        self.max_length, self.width = int(state["max_length"]), int(state.get("width", 0))

    def state(self) -> Sequence[Mapping[str, Any]]:
        """What each rank says about the model: version, parameters, bytes."""
        return self.group.run("describe", self.name)
