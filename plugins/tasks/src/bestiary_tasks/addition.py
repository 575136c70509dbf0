"""Addition as text: ``12+34=`` → ``46``."""

from collections.abc import Sequence
from hashlib import blake2b
from typing import Literal

from bestiary.protocols import Problem
from bestiary_tasks.options import AdditionOptions


class Addition:
    """All sums of two numbers, with a fixed held-out split.

    Args:
        options: the size.
    """

    reward = "exact_match"
    stop: tuple[str, ...] = ()

    def __init__(self, options: AdditionOptions) -> None:
        self.options = options
        self.max_tokens = options.digits + 2
        """A sum has at most one digit more than its operands; and an end token."""
        self._held = held_out(options)

    def problems(self, split: Literal["train", "eval"]) -> Sequence[Problem]:
        """Training problems by operands, held-out ones by hash: their first n are a fair sample."""
        if split == "eval":
            return tuple(_problem(a, b) for a, b in self._held)
        held, operands = set(self._held), self.options.operands()
        return tuple(_problem(a, b) for a in operands for b in operands if (a, b) not in held)


def held_out(options: AdditionOptions) -> tuple[tuple[int, int], ...]:
    """The ordered pairs of operands that are held out, ``eval_size`` of them.

    Pairs are taken in order of a hash of {a, b}; both orders of a pair are taken together.
    """
    operands = options.operands()
    pairs = sorted(
        ((a, b) for a in operands for b in operands if a <= b), key=lambda p: _hash(p[0], p[1])
    )
    held: list[tuple[int, int]] = []
    for a, b in pairs:
        orders = ((a, b),) if a == b else ((a, b), (b, a))
        if len(held) + len(orders) <= options.eval_size:
            held.extend(orders)
    return tuple(held)


def _hash(a: int, b: int) -> bytes:
    return blake2b(f"addition {a} {b}".encode(), digest_size=8).digest()


def _problem(a: int, b: int) -> Problem:
    return Problem(uid=f"{a}+{b}", prompt=f"{a}+{b}=", answer=str(a + b), target=str(a + b))
