"""The programs in ``examples/`` run as they are written, learn, and leave nothing behind."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
REWARD = re.compile(r"reward (\d\.\d+)")


def run(name):
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name)], capture_output=True, text=True, timeout=240,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", ["remax_16_lines.py", "remax.py", "ppo.py"])
def test_the_program_learns(name):
    rewards = [float(found) for found in REWARD.findall(run(name))]
    assert len(rewards) >= 15
    first, last = sum(rewards[:3]) / 3, sum(rewards[-3:]) / 3
    assert last > first + 0.1, rewards


def test_it_has_sixteen_lines():
    program = (EXAMPLES / "remax_16_lines.py").read_text().split('"""')[2]
    assert len([line for line in program.splitlines() if line.strip()]) <= 16


@pytest.mark.slow
def test_nothing_is_left_of_a_program_that_is_killed():
    program = subprocess.Popen(
        [sys.executable, str(EXAMPLES / "remax.py")], stdout=subprocess.PIPE, text=True
    )
    try:
        line = program.stdout.readline()
        assert "step  1" in line
        processes = psutil.Process(program.pid).children(recursive=True)
        assert len(processes) > 4
        temp = [
            process.environ().get("BESTIARY_TEMP") for process in processes if process.is_running()
        ]
        folder = Path(next(t for t in temp if t))
        assert folder.is_dir()
    finally:
        program.send_signal(signal.SIGKILL)
        program.wait()
        program.stdout.close()
    _, alive = psutil.wait_procs(processes, timeout=30)
    assert [p.cmdline() for p in alive if p.is_running()] == []
    deadline = time.monotonic() + 20
    while folder.exists() and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not folder.exists()


@pytest.mark.slow
def test_the_notebook_runs_from_top_to_bottom(tmp_path):
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(EXAMPLES / "ppo.ipynb", as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells)  # kept clean
    where = {"metadata": {"path": str(tmp_path)}}
    client = NotebookClient(notebook, timeout=240, kernel_name="python3", resources=where)
    before = os.environ.get("BESTIARY_JOB")
    client.execute()
    assert os.environ.get("BESTIARY_JOB") == before
    text = json.dumps(notebook)
    rewards = [float(found) for found in REWARD.findall(text)]
    assert sum(rewards[-3:]) / 3 > sum(rewards[:3]) / 3 + 0.1, rewards
