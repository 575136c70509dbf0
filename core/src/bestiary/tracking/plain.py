"""The run as plain lines, for a pipe, a log file or CI: no control characters."""

from bestiary.tracking.state import DisplayState
from bestiary.tracking.text import clean, duration, number

_SHOWN = (
    ("reward", "reward/mean"),
    ("cost", "cost/mean"),
    ("lambda", "lagrange/lambda"),
    ("accuracy", "preference/accuracy"),
    ("kl", "kl/reference"),
    ("kl in reward", "kl/reward"),
    ("len", "response_len/mean"),
    ("entropy", "entropy"),
    ("tok/s", "throughput/tokens_per_s"),
)
_EVAL = (
    ("held-out", "eval/exact_match"),
    ("greedy", "eval/greedy"),
    ("held-out reward", "eval/reward"),
    ("held-out cost", "eval/cost"),
    ("held-out accuracy", "eval/accuracy"),
)


def is_due(step: int, total: int, every: int, evaluated: bool) -> bool:
    """Whether a step gets a line: the first, the last, every k-th, and each evaluated one."""
    return evaluated or step <= 1 or step == total or step % every == 0


def step_line(state: DisplayState, evaluated: bool) -> str:
    """One line about the latest step; evaluation results only if this step has them."""
    shown = (*_SHOWN[:1], *(_EVAL if evaluated else ()), *_SHOWN[1:])
    if not state.graded:
        shown = tuple(item for item in shown if item[1] != "eval/reward")
    total = str(state.total_steps) if state.total_steps else "?"
    parts = [f"step {state.step:>{len(total)}}/{total}"]
    parts += [f"{name} {number(state.latest[key])}" for name, key in shown if key in state.latest]
    parts.append(f"elapsed {duration(state.elapsed_s)}")
    left = state.left_s
    if left is not None and state.step < state.total_steps:
        parts.append(f"left {duration(left)}")
    return "  ".join(parts)


def printable(text: str, encoding: str) -> str:
    """``text`` line by line without control characters, in what ``encoding`` can write."""
    lines = [clean(line, limit=2000) for line in text.splitlines()] or [""]
    return "\n".join(lines).encode(encoding, errors="replace").decode(encoding)
