"""Tables at the end of a run: before and after on held-out problems, and a few answers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table
from rich.text import Text

from bestiary.tracking.names import METRICS, describe
from bestiary.tracking.text import clean, number

HELD_OUT = (
    ("exact match, sampled (T=1, mean of 4)", "eval/exact_match"),
    ("exact match, greedy", "eval/greedy"),
    ("response length, sampled", "eval/response_len"),
    ("KL to reference", "kl/reference"),
    ("throughput", "throughput/tokens_per_s"),
)
"""Rows of the before/after table: label and metric, in order."""

RIGHT, WRONG = "✓", "✗"


@dataclass(frozen=True, slots=True)
class Grid:
    """A table as text, to be shown in whatever form is wanted.

    Args:
        headers: one for each column.
        rows: texts, each row as long as ``headers``.
        title: above the table; may be empty.
        numeric: indices of the columns that are aligned to the right.
    """

    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    title: str = ""
    numeric: frozenset[int] = frozenset()

    def rich(self) -> Table:
        """For a terminal."""
        table = Table(title=self.title or None, title_justify="left", title_style="bold")
        for index, header in enumerate(self.headers):
            table.add_column(Text(header), justify="right" if index in self.numeric else "left")
        for row in self.rows:
            table.add_row(*(Text(cell, style=_style(cell)) for cell in row))
        return table

    def markdown(self) -> str:
        """For a page; the title is left to the page."""
        rules = ["---:" if i in self.numeric else "---" for i in range(len(self.headers))]
        rows = [self.headers, *self.rows]
        lines = ["| " + " | ".join(c.replace("|", "\\|") for c in row) + " |" for row in rows]
        lines.insert(1, "|" + "|".join(rules) + "|")
        return "\n".join(lines) + "\n"

    def plain(self) -> str:
        """For a log file: columns aligned by spaces."""
        rows = [self.headers, *self.rows]
        widths = [max(len(row[i]) for row in rows) for i in range(len(self.headers))]
        lines = [
            "  ".join(
                cell.rjust(width) if i in self.numeric else cell.ljust(width)
                for i, (cell, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in rows
        ]
        lines.insert(1, "  ".join("-" * width for width in widths))
        return "\n".join([self.title, *lines] if self.title else lines) + "\n"


def before_after_table(
    before: Mapping[str, float | None],
    after: Mapping[str, float | None],
    *,
    title: str = "Held-out problems, never seen in training",
) -> Grid:
    """Compare two records on held-out problems.

    Args:
        before: metrics of the start, as from ``read_metrics(...)[0]``; any may be missing.
        after: metrics of the end.
        title: above the table.

    Returns:
        One row for each measure of ``HELD_OUT`` and each further ``eval/`` metric that either
        has: its name, before, after and the change. A measure that neither has is left out.
    """
    known = [key for _, key in HELD_OUT]
    extra = sorted(k for k in {*before, *after} if k.startswith("eval/") and k not in known)
    measures = [*HELD_OUT, *((key, key) for key in extra)]
    rows = []
    for label, key in measures:
        old, new = before.get(key), after.get(key)
        if old is None and new is None:
            continue
        doc = METRICS.get(key) or describe(key)
        unit = f" [{doc.unit}]" if doc and doc.unit not in ("", "fraction") else ""
        change = "" if old is None or new is None else _signed(new - old)
        rows.append((label + unit, number(old), number(new), change))
    return Grid(("", "before", "after", "change"), tuple(rows), title, frozenset({1, 2, 3}))


def answers_table(
    rows: Sequence[Mapping[str, Any]], *, title: str = "A few held-out answers"
) -> Grid:
    """Show answers before and after training side by side.

    Args:
        rows: mappings with ``prompt``, ``expected``, ``before`` and ``after`` (texts), and, where
            the task's own judgement is known, ``before_ok`` and ``after_ok`` (bool); without them
            an answer is right when it equals ``expected`` but for outer white space.
        title: above the table.
    """
    cells = tuple(
        (
            clean(row["prompt"], 48),
            clean(row["expected"], 24),
            _judged(row, "before"),
            _judged(row, "after"),
        )
        for row in rows
    )
    return Grid(("prompt", "expected", "before", "after"), cells, title)


def _judged(row: Mapping[str, Any], when: str) -> str:
    text = str(row[when])
    right = row.get(f"{when}_ok")
    if right is None:
        right = text.strip() == str(row["expected"]).strip()
    return f"{RIGHT if right else WRONG} {clean(text, 32)}"


def _signed(value: float) -> str:
    text = number(value)
    return text if value <= 0 else f"+{text}"


def _style(cell: str) -> str:
    if cell.startswith(RIGHT + " "):
        return "green"
    return "red" if cell.startswith(WRONG + " ") else ""
