import json
import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parent / "sweep_job.py"


def test_conf_05_jobs_of_a_sweep_leave_nothing_to_each_other(tmp_path):
    env = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH")}
    argv = [sys.executable, str(SCRIPT), "sweep", str(tmp_path)]
    done = subprocess.run(argv, env=env, timeout=200, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    seen = json.loads((tmp_path / "seen").read_text())
    first, second, third = seen["jobs"]
    assert first == third == {"status": 0, "left": [], "processes": []}
    assert second["status"] != 0
    assert (second["left"], second["processes"]) == ([], [])
    assert "WorkerFailure: rank 0 ValueError: step 3 is one too many" in done.stderr
    tokens = [json.loads((tmp_path / f"token{n}").read_text()) for n in (1, 2, 3)]
    assert len({token[0] for token in tokens}) == 3
    assert seen["cluster alive"] > 2
    assert seen["left"] == []
    assert seen["local"] is False
