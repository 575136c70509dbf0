"""A plugin for tests of whole runs: an algorithm with state, estimators of all scopes, losses."""

from bestiary import hookimpl

events = []
"""What this process was told."""


@hookimpl
def bestiary_on_worker_failure(event):
    events.append(event)


@hookimpl
def bestiary_on_checkpoint(event):
    events.append(event)


@hookimpl
def bestiary_on_run_end(event):
    events.append(event)


@hookimpl
def bestiary_register(registry):
    def add(kind, name, target, options):
        getattr(registry, kind)(
            name, target=f"run_lab.parts:{target}", options=f"run_lab.options:{options}"
        )

    add("algorithm", "lab_adaptive", "Adaptive", "AdaptiveOptions")
    add("advantage", "lab_mean_sample", "MeanOfGroup", "MeanSampleOptions")
    add("advantage", "lab_mean_group", "MeanOfGroup", "MeanGroupOptions")
    add("advantage", "lab_mean_row", "MeanOfAll", "MeanRowOptions")
    add("advantage", "lab_per_token", "PerToken", "PerTokenOptions")
    add("advantage", "lab_wrong_shape", "WrongShape", "MeanSampleOptions")
    add("tracker", "lab_calls", "Calls", "CallsOptions")
    add("loss", "lab_nan", "NaN", "NaNOptions")
    add("loss", "lab_slow", "Slow", "SlowOptions")
