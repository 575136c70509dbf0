"""The picture of a run in a terminal: a pure function of the display's state."""

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from bestiary.tracking.state import DisplayState
from bestiary.tracking.text import clean, duration, number, phase_shares, sparkline

PHASE_COLOURS = {
    "rollout": "blue",
    "score": "cyan",
    "update": "magenta",
    "sync": "yellow",
    "eval": "green",
    "other": "bright_black",
}
_LEFT = (
    ("reward", "reward/mean", "", "reward/mean"),
    ("held-out, sampled", "eval/exact_match", "", "eval/exact_match"),
    ("held-out, greedy", "eval/greedy", "", "eval/greedy"),
    ("tokens/s", "throughput/tokens_per_s", "", ""),
)
_RIGHT = (
    ("KL to reference", "kl/reference", "nats/token"),
    ("entropy", "entropy", "nats/token"),
    ("response length", "response_len/mean", "tokens"),
    ("loss", "loss/policy", ""),
)
_SOME = (
    ("held-out reward", "eval/reward", "", ""),
    ("KL in reward", "kl/reward", "nats/token"),
)
"""A row that is shown where a run has one of the two."""
_SPARK = 18
_BORDER = {"finished": "green", "failed": "red", "stopped": "yellow"}


def render(state: DisplayState, spinner: Spinner) -> RenderableType:
    """The panel, or a spinner with the name of the phase before the run has started."""
    if not state.title:
        spinner.update(text=Text(f" {state.phase or 'starting'}"))
        return spinner
    parts: list[RenderableType] = [_progress(state)]
    if state.phase:
        spinner.update(text=Text(f" {state.phase}"))
        parts.append(spinner)
    parts += [Text(), _numbers(state), Text(), _phases(state)]
    if state.sample is not None:
        parts += [Text(), _sample(state.sample)]
    return Panel(
        Group(*parts),
        title=Text(f" {state.title} ", style="bold"),
        title_align="left",
        subtitle=Text(f" {state.folder} ", style="dim") if state.folder else None,
        subtitle_align="left",
        border_style=_BORDER.get(state.status, "blue"),
        padding=(0, 1),
    )


def _progress(state: DisplayState) -> Table:
    grid = Table.grid(padding=(0, 2), expand=True)
    grid.add_column(no_wrap=True)
    grid.add_column(ratio=1)
    grid.add_column(no_wrap=True)
    total = state.total_steps
    bar = ProgressBar(total=max(total, 1), completed=min(state.step, total))
    left = state.left_s
    if state.status:
        clock = f"{duration(state.elapsed_s)}  {state.status}"
    else:
        clock = f"{duration(state.elapsed_s)} elapsed"
        clock += f"  {duration(left)} left" if left is not None else ""
    grid.add_row(Text(f"step {state.step}/{total or '?'}", style="bold"), bar, Text(clock))
    return grid


def _numbers(state: DisplayState) -> Table:
    grid = Table.grid(padding=(0, 1), expand=True)
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(justify="right", no_wrap=True, style="bold", min_width=6)
    grid.add_column(no_wrap=True, style="green", ratio=1)
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(justify="right", no_wrap=True, style="bold", min_width=6)
    grid.add_column(style="dim", no_wrap=True)
    rows = list(zip(_LEFT, _RIGHT, strict=True))
    if state.graded or _SOME[1][1] in state.latest:
        rows.append(_SOME)
    for (name, key, _, drawn), (name2, key2, unit2) in rows:
        grid.add_row(
            name,
            number(state.latest.get(key)),
            sparkline(state.history.get(drawn, ()), _SPARK),
            name2,
            number(state.latest.get(key2)),
            unit2,
        )
    return grid


def _phases(state: DisplayState) -> RenderableType:
    shares = phase_shares(state.spent)
    if not shares:
        return Text("time  -", style="dim")
    legend = Text("  ").join(
        Text.assemble(("■ ", PHASE_COLOURS[name]), f"{name} {share:.0%}")
        for name, share in shares.items()
        if share >= 0.005
    )
    return Group(_Bar(shares), legend)


class _Bar:
    """A bar over the whole width with one part for each phase."""

    def __init__(self, shares: Mapping[str, float]) -> None:
        self._shares = shares

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        bar = Text(no_wrap=True)
        edge, start = 0.0, 0
        for name, share in self._shares.items():
            edge += share * options.max_width
            end = max(start, round(edge))
            bar.append("█" * (end - start), style=PHASE_COLOURS[name])
            start = end
        yield bar


def _sample(row: Any) -> Table:  # noqa: ANN401 - a mapping with any values
    grid = Table.grid(padding=(0, 1), expand=True)
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
    grid.add_row("prompt", Text(clean(row.get("prompt", ""))))
    grid.add_row("response", Text(clean(row.get("response", ""))))
    reward = row.get("reward")
    verdict = number(reward) if isinstance(reward, int | float) else clean(reward)
    if row.get("answer"):
        verdict += f"   (expected {clean(row['answer'], 40)})"
    grid.add_row("reward", Text(verdict))
    return grid
