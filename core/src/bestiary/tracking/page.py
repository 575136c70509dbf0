"""The page ``docs/metrics.md``, made from the table of names.

``python -m bestiary.tracking.page docs/metrics.md`` writes it; a test holds the two equal.
"""

import sys
from collections.abc import Iterable
from pathlib import Path

from bestiary.tracking.names import FAMILIES, METRICS, MetricDoc

_HEAD = """# Metrics

A run writes one JSON object for each step to `RUN/metrics.jsonl`. Trackers receive the same names.
This page is made from `bestiary.tracking.names` with
`python -m bestiary.tracking.page docs/metrics.md`.

Rules of the record:

- `step` stands first, the other keys are sorted. A metric that was not measured is absent.
- A value that is NaN or infinite is written as `null`, and its name is in the list `nonfinite`.
- The file is only appended to. A resumed run raises `attempt`; `read_metrics` gives each step
  once, from the last attempt, and leaves out what that attempt abandoned.
- A few samples of a step, with prompt, response and reward, are in `RUN/samples/step_N.jsonl`.
"""


def page() -> str:
    """The whole page as markdown."""
    return (
        f"{_HEAD}\n## Names\n\n{_rows(METRICS.values())}"
        f"\n## Families\n\nA name that is not listed above belongs to a family by its prefix.\n\n"
        f"{_rows(FAMILIES.values())}"
    )


def _rows(docs: Iterable[MetricDoc]) -> str:
    lines = ["| name | unit | better | meaning |", "|---|---|---|---|"]
    lines += [f"| `{d.name}` | {d.unit} | {d.better} | {_escape(d.help)} |" for d in docs]
    return "\n".join(lines) + "\n"


def _escape(text: str) -> str:
    return text.replace("|", "\\|")


def main(arguments: list[str]) -> None:
    """Write the page to the path given first."""
    Path(arguments[0]).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
