"""The command as a stranger has it: real entry points, real processes."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

DISTS = Path(__file__).parents[1] / "config" / "dists"

RUN = [
    "algorithm=zoo_grpo",
    "task=zoo_addition",
    "model=tiny",
    "model.warm_start=null",
    "sampler=zoo_uniform",
    "rollout_engine=zoo_local",
    "train_engine=zoo_fsdp",
    "schedule=zoo_sync",
    "placement=zoo_colocate",
]


@dataclass(frozen=True)
class Done:
    status: int
    out: str
    err: str


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """A folder with the metadata of installed plugins, one of them broken."""
    folder = tmp_path_factory.mktemp("site")
    for name, version, module in (
        ("basics", "1.0", "zoo_basics"),
        ("algos", "2.0", "zoo_algos"),
        ("broken", "0.1", "zoo_broken"),
    ):
        info = folder / f"zoo_{name}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: zoo-{name}\nVersion: {version}\n"
        )
        (info / "entry_points.txt").write_text(f"[bestiary]\n{name} = {module}\n")
    (folder / "zoo_broken.py").write_text("raise RuntimeError('broken on purpose')\n")
    return folder


@pytest.fixture
def base():
    """Words of a run on the components of the test plugins alone."""
    return list(RUN)


@pytest.fixture
def environ(site, tmp_path):
    """Environment of commands: only the test plugins besides the core."""
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(site), str(DISTS), str(Path(__file__).parent)]),
        "BESTIARY_LOAD_PLUGINS": "zoo-basics,zoo-algos,zoo-broken",
        "COLUMNS": "200",
    }


@pytest.fixture
def bestiary(environ, tmp_path):
    """Run the command in an empty folder."""

    def run(*words, **variables):
        done = subprocess.run(
            [sys.executable, "-m", "bestiary.cli.main", *words],
            cwd=tmp_path, env={**environ, **variables}, capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        return Done(done.returncode, done.stdout, done.stderr)

    return run


@pytest.fixture
def launcher(environ, tmp_path):
    """Run the command with another program in place of the job."""

    def run(*words, job="fake_job", **variables):
        code = (
            "import sys\n"
            "from bestiary.cli import launch, main, sweep\n"
            f"launch.launch.__kwdefaults__['module'] = '{job}'\n"
            f"sweep.sweep.__kwdefaults__['module'] = '{job}'\n"
            "sys.exit(main.main(sys.argv[1:]))\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", code, *words],
            cwd=tmp_path, env={**environ, **variables}, capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        return Done(done.returncode, done.stdout, done.stderr)

    return run
