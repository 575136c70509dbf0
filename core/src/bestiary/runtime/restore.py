"""Going on from a checkpoint: refuse one that something else has made, then load everything."""

from typing import Any

from bestiary.errors import CheckpointError
from bestiary.runtime.checkpoint import Checkpoint
from bestiary.runtime.loop import Progress
from bestiary.runtime.session import Session


def made_by(session: Session) -> dict[str, Any]:
    """What a checkpoint records of the run that made it."""
    plan = session.plan
    return {
        "model": plan.model.path,
        "choices": {
            group: plan.choices[group]
            for group in ("algorithm", "task", "model", "sampler", "train_engine")
        },
        "seed": plan.run.seed,
        "prompts": session.prompts.train.digest(),
        "plugins": session.components.plugins.fingerprint(),
    }


def restore(session: Session, checkpoint: Checkpoint, progress: Progress) -> None:
    """Load models, algorithm, sampler, data position and counters.

    The reference and other frozen models keep their base weights.

    Raises:
        CheckpointError: if another model, data set, algorithm or plugin set made it; names each
            difference.
    """
    state = checkpoint.state()
    differ = _differences(state["made_by"], made_by(session))
    if differ:
        raise CheckpointError(
            f"{checkpoint.path} was made by another run: " + "; ".join(differ),
            hint="resume with the settings that made it, or start a new run from its weights "
            "(model=hf model.path=RUN/model)",
        )
    session.load_state_dict(state)
    for name, model in session.models.items():
        if session.trainable(name):
            model.group.run("load", name, str(checkpoint.model(name)))
    saved = state["progress"]
    progress.step = int(saved["step"])
    progress.tokens_generated = int(saved["tokens_generated"])
    progress.samples = int(saved["samples"])
    progress.seconds = float(saved["seconds"])


def _differences(wanted: Any, found: Any, where: str = "") -> list[str]:  # noqa: ANN401 - JSON
    if isinstance(wanted, dict) and isinstance(found, dict):
        return [
            text
            for key in sorted({*wanted, *found})
            for text in _differences(wanted.get(key), found.get(key), f"{where}.{key}".lstrip("."))
        ]
    if wanted == found:
        return []
    if isinstance(wanted, list) and isinstance(found, list):
        return [f"{where} differs"]
    return [f"{where} was {wanted!r} and is {found!r}"]
