"""Names: how distributions are compared, and which right name a wrong one was meant for."""

import re
from collections.abc import Iterable
from difflib import get_close_matches


def normalise(distribution: str) -> str:
    """A distribution's name as package indexes compare it: ``My_Lab.x`` is ``my-lab-x``."""
    return re.sub(r"[-_.]+", "-", distribution.strip()).lower()


def nearest(name: str, known: Iterable[str]) -> list[str]:
    """The known names that ``name`` was probably meant for, best first, three at most.

    Case and the choice between ``-`` and ``_`` do not count; a known name that contains ``name``
    counts as near.
    """
    plain: dict[str, str] = {}
    for option in known:
        plain.setdefault(option.lower().replace("-", "_"), option)
    wanted = name.lower().replace("-", "_")
    close = get_close_matches(wanted, plain, n=3, cutoff=0.6)
    if len(wanted) >= 3:
        close += [option for option in sorted(plain) if wanted in option and option not in close]
    return [plain[option] for option in close[:3]]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """``"; did you mean 'x' or 'y'?"``, or nothing where no name is near."""
    near = nearest(name, known)
    return f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
