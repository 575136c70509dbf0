"""Evaluate a checkpoint, a run or a model on held-out problems, in a job process of its own.

``python -m bestiary.runtime.eval_job EVAL_DIR``: the folder holds ``config.json`` (as of a run)
and ``target.json`` (``{"checkpoint": path or null}``); the answer goes to ``eval.json``.
"""

import json
import sys
from pathlib import Path

from bestiary.config.plan import RunPlan
from bestiary.errors import EXIT_FAILURE, BestiaryError
from bestiary.evaluation.evaluate import Evaluation
from bestiary.plugins.manager import load_plugins
from bestiary.runtime.checkpoint import find_checkpoint
from bestiary.runtime.job import EXIT_STOPPED, log_to
from bestiary.runtime.loop import evaluate_session
from bestiary.runtime.session import open_session
from bestiary.tracking.display import Display


def main(argv: list[str]) -> int:
    """Run the evaluation of a prepared folder; returns the exit status."""
    folder = Path(argv[0]).absolute()
    log_to(folder / "logs" / "controller.log")
    try:
        found = run(folder)
    except KeyboardInterrupt:
        return EXIT_STOPPED
    except BestiaryError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    except Exception as error:
        sys.stderr.write(f"error: unexpected {type(error).__name__}: {error}\n")
        return EXIT_FAILURE
    answer = {"metrics": found.metrics, "answers": found.answers}
    (folder / "eval.json").write_text(json.dumps(answer, indent=1, ensure_ascii=False))
    return 0


def run(folder: Path) -> Evaluation:
    """Start what the plan needs, load the checkpoint's weights, and evaluate."""
    plugins = load_plugins()
    plan = RunPlan.from_json((folder / "config.json").read_text(), plugins)
    target = json.loads((folder / "target.json").read_text())["checkpoint"]
    checkpoint = find_checkpoint(Path(target)) if target else None
    display = Display(plan.run.display, 0)
    with open_session(plan, plugins, folder, display.phase) as session:
        if checkpoint is not None:
            display.phase(f"loading step {checkpoint.step}")
            for name, model in session.models.items():
                if session.trainable(name):
                    model.group.run("load", name, str(checkpoint.model(name)))
        display.phase("evaluating")
        return evaluate_session(session)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
