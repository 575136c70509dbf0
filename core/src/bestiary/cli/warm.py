"""The supervised warm start of a model: made once by a run of its own, then cached by content."""

import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bestiary.config.schema import ModelOptions, TinyModelOptions, WarmStart
from bestiary.errors import ModelError

if TYPE_CHECKING:
    from bestiary.config.plan import RunPlan
    from bestiary.plugins.manager import PluginSet

KIND = "warm"
IN_PROCESS = "inprocess"

_SETTINGS = (
    "algorithm.prompts=64",
    "train_engine.lr=1e-3",
    "train_engine.warmup_steps=30",
    "eval.every=0",
    "eval.at_start=false",
    "eval.problems=64",
)
"""Settings of the supervised run that a ``model.warm_start`` can override."""


def with_warm_start(plan: "RunPlan", plugins: "PluginSet") -> "RunPlan":
    """The plan with a model whose weights are warm: trained first where they are not cached.

    The cache entry is named by a hash of everything that decides the weights: the model's shape,
    the task, the supervised algorithm with its settings, and the code of the plugins involved.

    Raises:
        ModelError: if the supervised run fails.
    """
    warm = plan.model.warm_start
    if warm is None:
        return plan
    supervised = supervised_plan(plan, warm, plugins)
    folder = _cached(supervised, plugins)
    common = {f.name: getattr(plan.model, f.name) for f in fields(ModelOptions)}
    model = ModelOptions(**{**common, "path": str(folder), "warm_start": None})
    return replace(
        plan,
        choices={**plan.choices, "model": "hf"},
        options={**plan.options, "model": model},
    )


def supervised_plan(plan: "RunPlan", warm: WarmStart, plugins: "PluginSet") -> "RunPlan":
    """The run that makes the warm weights: same model, same task, the supervised algorithm."""
    from bestiary.config.compose import compose_run

    task = warm.task or plan.choices["task"]
    # A tiny model is trained before worker processes would have started.
    tiny = isinstance(plan.model, TinyModelOptions)
    placement = IN_PROCESS if tiny else plan.choices["placement"]
    words = [
        f"algorithm={warm.algorithm}",
        f"task={task}",
        f"model={plan.choices['model']}",
        *([] if tiny else [f"model.path={plan.model.path}"]),
        f"placement={placement}",
        f"steps={warm.steps}",
        f"seed={warm.seed}",
        *_SETTINGS,
        *warm.overrides,
    ]
    made = compose_run(words, None, plugins)
    options: dict[str, Any] = {**made.options, "model": replace(plan.model, warm_start=None)}
    if not warm.task:
        options["task"] = plan.options["task"]
    if placement == plan.choices["placement"]:
        options["placement"] = plan.options["placement"]
    run = replace(
        made.run, cluster=plan.run.cluster, timeout_s=plan.run.timeout_s, display=plan.run.display
    )
    return replace(made, run=run, options=options)


def _cached(supervised: "RunPlan", plugins: "PluginSet") -> Path:
    from bestiary.models.cache import cached

    def build(folder: Path) -> None:
        sys.stderr.write(
            f"warm start: {supervised.run.steps} supervised steps, kept for later runs …\n"
        )
        _train(supervised, plugins, folder)

    return cached(KIND, warm_key(supervised, plugins), build)


def warm_key(supervised: "RunPlan", plugins: "PluginSet") -> Mapping[str, Any]:
    """What decides the weights: settings, and the code of the members that take part."""
    import bestiary

    data = supervised.to_json()
    settings = {k: data["options"][k] for k in ("algorithm", "loss", "task", "model", "sampler")}
    engine = data["options"]["train_engine"]
    numbers = (
        "lr",
        "betas",
        "eps",
        "weight_decay",
        "clip_norm",
        "warmup_steps",
        "lr_schedule",
        "total_steps",
    )
    owners = {
        supervised.component(group, plugins).owner.distribution
        for group in ("algorithm", "loss", "task", "sampler")
    }
    code = {
        plugin["distribution"]: plugin["content"]
        for plugin in plugins.fingerprint()["plugins"]
        if plugin["distribution"] in owners and plugin["distribution"] != "bestiary"
    }
    return {
        "core": bestiary.__version__,
        "code": code,
        "choices": dict(supervised.choices),
        "settings": settings,
        "optimizer": {name: engine[name] for name in numbers},
        "steps": supervised.run.steps,
        "seed": supervised.run.seed,
    }


def _train(supervised: "RunPlan", plugins: "PluginSet", folder: Path) -> None:
    from bestiary.cli.launch import launch

    aside = Path(tempfile.mkdtemp(prefix="warm-", dir=folder.parent))
    try:
        run_dir = str(aside / "run")
        plan = replace(supervised, run=replace(supervised.run, run_dir=run_dir))
        outcome = launch(plan, plugins, sys.argv)
        if outcome.status:
            raise ModelError(
                f"the supervised warm start failed with status {outcome.status}",
                hint="its message is above; model.warm_start=null starts from raw weights",
            )
        for file in sorted((outcome.folder / "model").iterdir()):
            shutil.copy2(file, folder / file.name)
        os.sync()
    finally:
        shutil.rmtree(aside, ignore_errors=True)
