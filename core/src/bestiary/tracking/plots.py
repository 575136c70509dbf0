"""Learning curves as a picture. matplotlib is imported when the first one is drawn."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bestiary.errors import DataError
from bestiary.tracking.curves import PHASES, Record, moving_mean, seconds, series, shares

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette: told apart under every common form of colour blindness.
BLUE, ORANGE, GREEN, VERMILION = "#0072B2", "#E69F00", "#009E73", "#D55E00"
PURPLE, SKY, YELLOW, GREY = "#CC79A7", "#56B4E9", "#F0E442", "#9A9A9A"
RUN_COLOURS = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, GREY)
PHASE_COLOURS = dict(zip(PHASES, (BLUE, SKY, VERMILION, YELLOW, GREEN, "#D0D0D0"), strict=True))

_STYLE: dict[Any, Any] = {  # matplotlib types the keys as its own list of literals
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#666666",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E4E4E4",
    "grid.linewidth": 0.8,
    "legend.frameon": False,
    "legend.labelspacing": 0.8,
    "figure.dpi": 144,
    "svg.hashsalt": "bestiary",
}


def learning_curve(
    runs: Sequence[Record] | Mapping[str, Sequence[Record]],
    path: str | os.PathLike[str],
    *,
    title: str = "",
) -> Path:
    """Draw how a run learned, or compare several.

    One run: reward and held-out exact match over steps and over seconds; KL to the reference,
    entropy and response length; the share of each phase. Several runs, by label: reward and
    held-out exact match of each over steps and over seconds.

    Args:
        runs: records as ``read_metrics`` gives them, or such records by label.
        path: file to write; its ending chooses the format.
        title: above the panels.

    Returns:
        ``path``.

    Raises:
        DataError: if there is no record to draw.
    """
    labelled = (
        {label: list(rows) for label, rows in runs.items()} if isinstance(runs, Mapping) else {}
    )
    single = [] if isinstance(runs, Mapping) else list(runs)
    if not single and not any(labelled.values()):
        raise DataError(
            "no records to draw a learning curve from",
            hint="give what read_metrics(RUN/metrics.jsonl) returns, after at least one step",
        )
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    target = Path(path)
    with rc_context(_STYLE):
        layout = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.1)
        figure = Figure(figsize=(11.0, 7.2) if single else (11.0, 6.4), layout=layout)
        FigureCanvasAgg(figure)
        if single:
            _one_run(figure, single)
        else:
            _several_runs(figure, {k: v for k, v in labelled.items() if v})
        if title:
            figure.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold")
        target.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(target)
    return target


def _one_run(figure: "Figure", records: list[Record]) -> None:
    rows: Any = figure.subfigures(3, 1, height_ratios=[1.45, 1.3, 1.05])
    top, middle, bottom = rows
    axes = {"steps": top.subplots()}
    axes["seconds"], axes["phases"] = middle.subplots(1, 2)
    axes["kl"], axes["entropy"], axes["len"] = bottom.subplots(1, 3)
    at = seconds(records)
    _learning(axes["steps"], records, None)
    axes["steps"].set_title("Learning over steps")
    axes["steps"].set_xlabel("step")
    axes["steps"].legend(loc="center left", bbox_to_anchor=(1.04, 0.5))
    _learning(axes["seconds"], records, at)
    axes["seconds"].set_title("Learning over time")
    axes["seconds"].set_xlabel("seconds of training and evaluation")
    _phases(axes["phases"], records)
    small = (
        ("kl", "kl/reference", "KL to the reference", "nats per token"),
        ("entropy", "entropy", "Entropy", "nats per token"),
        ("len", "response_len/mean", "Response length", "tokens"),
    )
    for key, name, heading, unit in small:
        _small(axes[key], records, name, heading, unit)


def _learning(axis: "Axes", records: list[Record], at: dict[int, float] | None) -> None:
    """Reward and held-out exact match against steps, or against seconds where ``at`` is given."""
    steps, reward = series(records, "reward/mean")
    x = _x(steps, at)
    axis.plot(x, reward, color=GREY, linewidth=0.8, alpha=0.45)
    smooth = moving_mean(reward, max(1, len(reward) // 25))
    axis.plot(x, smooth, color="#555555", linewidth=1.6, label="training reward")
    for name, colour, marker, label in (
        ("eval/greedy", ORANGE, "s", "held-out exact match,\ngreedy"),
        ("eval/exact_match", BLUE, "o", "held-out exact match,\nsampled at T=1"),
    ):
        steps, values = series(records, name)
        if not values:
            continue
        x = _x(steps, at)
        axis.plot(x, values, color=colour, marker=marker, markersize=4, linewidth=2.0, label=label)
        axis.annotate(
            f"{values[-1]:.2f}",
            (x[-1], values[-1]),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            color=colour,
            fontweight="bold",
            annotation_clip=False,
        )
    axis.set_ylabel("fraction right / reward")
    _unit_range(axis, [*reward, *series(records, "eval/greedy")[1]])
    axis.margins(x=0.01)


def _phases(axis: "Axes", records: list[Record]) -> None:
    steps, bands = shares(records)
    axis.set_title("Share of each phase")
    axis.set_xlabel("step")
    axis.set_ylabel("fraction of wall time")
    axis.set_ylim(0.0, 1.0)
    axis.grid(visible=False)
    if not steps:
        return
    if len(steps) == 1:  # an area needs two edges
        steps, bands = [steps[0] - 0.5, steps[0] + 0.5], [[band[0]] * 2 for band in bands]
    shown = [(name, band) for name, band in zip(PHASES, bands, strict=True) if max(band) >= 0.002]
    axis.stackplot(
        steps,
        [band for _, band in shown],
        labels=[name for name, _ in shown],
        colors=[PHASE_COLOURS[name] for name, _ in shown],
        linewidth=0.5,
        edgecolor="white",
    )
    axis.set_xlim(steps[0], steps[-1])
    handles, labels = axis.get_legend_handles_labels()
    axis.legend(handles[::-1], labels[::-1], loc="center left", bbox_to_anchor=(1.0, 0.5))


def _small(axis: "Axes", records: list[Record], name: str, heading: str, unit: str) -> None:
    steps, values = series(records, name)
    axis.plot(steps, values, color=BLUE, linewidth=1.2)
    axis.set_title(heading)
    axis.set_xlabel("step")
    axis.set_ylabel(unit)
    axis.margins(x=0.01)
    if values and min(values) >= 0.0:
        axis.set_ylim(0.0, 1.15 * max(values) or 1.0)


def _several_runs(figure: "Figure", runs: dict[str, list[Record]]) -> None:
    grid = figure.subplots(2, 2, sharey="row")
    rows = (("reward/mean", "training reward"), ("eval/exact_match", "held-out exact match, T=1"))
    for row, (name, heading) in enumerate(rows):
        for column, x_label in enumerate(("step", "seconds of training and evaluation")):
            axis = grid[row][column]
            _compare(axis, runs, name, by_time=column == 1)
            axis.set_xlabel(x_label)
            axis.set_ylabel(heading if column == 0 else "")
            axis.margins(x=0.01)
        values = [v for records in runs.values() for v in series(records, name)[1]]
        _unit_range(grid[row][0], values)
    handles, labels = grid[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center")


def _compare(axis: "Axes", runs: dict[str, list[Record]], name: str, *, by_time: bool) -> None:
    marker = "o" if name.startswith("eval/") else ""
    for index, (label, records) in enumerate(runs.items()):
        colour = RUN_COLOURS[index % len(RUN_COLOURS)]
        dashes = ("-", "--", ":")[index // len(RUN_COLOURS) % 3]
        steps, values = series(records, name)
        if not marker:
            values = moving_mean(values, max(1, len(values) // 25))
        x = _x(steps, seconds(records) if by_time else None)
        axis.plot(
            x, values, dashes, color=colour, marker=marker, markersize=4, linewidth=1.8, label=label
        )


def _x(steps: list[int], at: dict[int, float] | None) -> list[float]:
    return [float(step) if at is None else at[step] for step in steps]


def _unit_range(axis: "Axes", values: list[float]) -> None:
    """Show the whole range from 0 to 1 where all values are fractions."""
    if values and min(values) >= 0.0 and max(values) <= 1.0:
        axis.set_ylim(0.0, 1.02)
