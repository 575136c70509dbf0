"""In place of a job: reads its plan as a job does and records what it saw."""

import json
import os
import sys
from pathlib import Path

from bestiary.config.run_dir import read_plan
from bestiary.plugins.manager import load_plugins


def main(folder):
    plan = read_plan(folder, load_plugins())
    seen = {
        "pid": os.getpid(),
        "parent": os.getppid(),
        "token": os.environ["BESTIARY_JOB"],
        "plan": plan.to_json(),
        "lock": (folder / ".lock").exists(),
        "traceback": os.environ.get("BESTIARY_TRACEBACK"),
    }
    (folder / "seen.json").write_text(json.dumps(seen))
    (folder / "metrics.jsonl").write_text(json.dumps({"step": 1, "reward/mean": 0.5}) + "\n")
    if plan.run.seed == int(os.environ.get("FAIL_SEED", "-1")):
        raise RuntimeError("training failed on purpose")
    if plan.run.seed == int(os.environ.get("STOP_SEED", "-1")):
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
