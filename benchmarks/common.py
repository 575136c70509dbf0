"""What the comparisons share: the peer's environment, our runs, and the load of the machine."""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

HERE = Path(__file__).resolve().parent
PEER = HERE / "peers" / "peer_trl.py"


def cache() -> Path:
    root = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "bestiary" / "peers"
    root.mkdir(parents=True, exist_ok=True)
    return root


def peer_python(given: str = "") -> str:
    """The interpreter of TRL's own environment, made on first use."""
    if given:
        return given
    folder = cache() / "trl"
    python = folder / "bin" / "python"
    if not (folder / ".installed").exists():
        say(f"making TRL's environment in {folder} …")
        venv.create(folder, with_pip=True, clear=True)
        wanted = HERE / "peers" / "trl.txt"
        subprocess.run([str(python), "-m", "pip", "install", "-q", "-r", str(wanted)], check=True)
        (folder / ".installed").touch()
    return str(python)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def peer(python: str, *words: object) -> dict:
    """Run the peer's script and return its JSON."""
    command = [python, str(PEER), *map(str, words)]
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    if done.returncode:
        raise SystemExit(f"the peer failed: {' '.join(command)}\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def bestiary(run_dir: Path, *words: object) -> list[dict]:
    """Run ``bestiary train`` and return its records."""
    command = [sys.executable, "-m", "bestiary.cli.main", "train", *map(str, words)]
    command += [f"run_dir={run_dir}", "display=none"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"the run failed: {' '.join(command)}\n{done.stderr[-3000:]}")
    from bestiary.tracking.jsonl import read_metrics

    return read_metrics(run_dir / "metrics.jsonl")


def busy_cores(seconds: float = 1.0) -> float:
    """Cores that others keep busy while this process waits, from /proc/stat."""

    def read() -> tuple[float, float]:
        ticks = [float(x) for x in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
        return sum(ticks), ticks[3] + ticks[4]

    total, idle = read()
    time.sleep(seconds)
    total_2, idle_2 = read()
    share = 1 - (idle_2 - idle) / max(total_2 - total, 1e-9)
    return round(share * (os.cpu_count() or 1), 2)


def median(values: list[float]) -> float:
    return round(statistics.median(values), 4)


def write_prompts(path: Path, rows: list[tuple[str, str]]) -> None:
    with path.open("w") as file:
        for i, (prompt, answer) in enumerate(rows):
            file.write(json.dumps({"uid": str(i), "prompt": prompt, "answer": answer}) + "\n")


def scratch() -> tempfile.TemporaryDirectory:
    return tempfile.TemporaryDirectory(prefix="bestiary-bench-")


def machine() -> dict:
    import platform

    model = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines()
         if line.startswith("model name")),
        platform.processor(),
    )  # fmt: skip
    return {"cpu": model, "cores": os.cpu_count(), "python": platform.python_version()}
