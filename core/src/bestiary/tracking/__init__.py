"""What a run writes down and shows: the record, trackers, the live display, plots and tables.

What a run loop needs, in the order of use::

    display = Display("auto", total_steps=200)           # auto, rich, plain or none
    trackers = Trackers([NamedTracker("wandb", owner, tracker)], report=display.message)
    with display:                                        # puts the terminal back whatever happens
        display.phase("starting workers")                # spinner until the first step or phase("")
        trackers.start(run); display.start(run)          # run: protocols.RunInfo
        trackers.log(step, metrics); display.log(step, metrics)       # every step, once, whole
        trackers.samples(step, rows); display.samples(step, rows)  # prompt response reward answer
        trackers.sync()                                  # before the marker of a checkpoint
        trackers.finish(status); display.finish(status)  # "finished", "failed" or "stopped"

``Trackers`` always writes ``RUN/metrics.jsonl`` and ``RUN/samples/``; a failure there ends the
run, a failure of any other tracker is reported once. ``read_metrics(path)`` gives each step once.
``learning_curve(records, path, title=)`` draws it; ``before_after_table(before, after)`` and
``answers_table(rows)`` give a :class:`~bestiary.tracking.tables.Grid` with ``rich()``,
``markdown()`` and ``plain()``. Metric names and units: :mod:`bestiary.tracking.names`.
"""

from bestiary.tracking.display import Display
from bestiary.tracking.fanout import NamedTracker, Trackers, tag_ranks
from bestiary.tracking.jsonl import JsonlTracker, read_metrics, read_records, read_samples
from bestiary.tracking.names import METRICS, MetricDoc, describe
from bestiary.tracking.plots import learning_curve
from bestiary.tracking.tables import Grid, answers_table, before_after_table

__all__ = [
    "METRICS",
    "Display",
    "Grid",
    "JsonlTracker",
    "MetricDoc",
    "NamedTracker",
    "Trackers",
    "answers_table",
    "before_after_table",
    "describe",
    "learning_curve",
    "read_metrics",
    "read_records",
    "read_samples",
    "tag_ranks",
]
