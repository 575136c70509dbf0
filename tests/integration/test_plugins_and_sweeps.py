"""A stranger's plugin is installed, trains and is gone again; a sweep gives runs of their own."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from run_help import SMALL, custom, records

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).parents[2] / "examples" / "third_party_plugin"
WORDS = [*SMALL, *custom("letters"), "steps=2", "eval.every=0"]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The example, installed from a copy, so that the build leaves nothing in the repository."""
    folder = tmp_path_factory.mktemp("example")
    shutil.copytree(EXAMPLE, folder / "source")
    install = ["install", "--no-deps", "--no-build-isolation", "--no-index", "--quiet"]
    subprocess.run(
        [sys.executable, "-m", "pip", *install, "--target", folder / "site", folder / "source"],
        env={**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
        check=True,
    )
    return folder / "site"


def test_a_third_party_algorithm_and_sampler_train_on_workers_and_are_gone(make_command, site):
    command = make_command(site=site)
    listed = json.loads(subprocess_output(command, "plugins", "--json"))
    assert "bestiary-lab" in {row["distribution"] for row in listed}

    words = ["algorithm=lab_reinforce", "sampler=lab_hardest", "placement.workers=2"]
    done = command("train", *WORDS, *words, "run_dir=run")
    assert done.status == 0, done
    kept = [r for r in records(command.folder / "run") if r["step"] > 0]
    assert [r["step"] for r in kept] == [1, 2]
    assert all(r["grad_norm"] > 0 for r in kept)
    manifest = json.loads((command.folder / "run" / "manifest.json").read_text())
    assert manifest["owners"]["sampler"].startswith("lab (bestiary-lab")
    state = json.loads(
        (command.folder / "run" / "checkpoints" / "step_2" / "state.json").read_text()
    )
    assert len(state["sampler"]["rates"]) >= 4
    assert command.leftovers() == []

    shutil.rmtree(site)
    listed = json.loads(subprocess_output(command, "plugins", "--json"))
    assert "bestiary-lab" not in {row["distribution"] for row in listed}
    refused = command("train", *WORDS, *words, "run_dir=again")
    assert refused.status == 2
    assert "lab_reinforce" in refused.err.splitlines()[0]
    assert not (command.folder / "again").exists()
    resumed = command("train", *WORDS, *words, "run_dir=run", "resume=auto", "steps=3")
    assert resumed.status == 2


def subprocess_output(command, *words):
    """Standard output of a command that starts no job."""
    argv = [sys.executable, "-m", "bestiary.cli.main", *words]
    return subprocess.run(
        argv, cwd=command.folder, env=command.env, capture_output=True, text=True, check=True
    ).stdout


def test_a_sweep_gives_each_run_a_folder_and_a_line(make_command):
    command = make_command()
    words = ["algorithm=grpo", "placement=inprocess", "eval.at_start=false", "run_dir=runs/sweep"]
    done = command("train", "-m", *WORDS, *words, "seed=0,1")
    assert done.status == 0, done
    folders = sorted((command.folder / "runs" / "sweep").iterdir())
    assert [folder.name for folder in folders] == ["0", "1"]
    rewards = []
    for seed, folder in enumerate(folders):
        assert json.loads((folder / "manifest.json").read_text())["seed"] == seed
        assert json.loads((folder / "result.json").read_text())["status"] == "finished"
        rewards.append([r["reward/mean"] for r in records(folder)])
        assert len(rewards[-1]) == 2
    assert rewards[0] != rewards[1]
    assert "2 runs" in done.out
    assert done.out.count(" ok ") == 2
    assert command.leftovers() == []
