"""``bestiary new`` writes plugins that install, pass their tests and train at once."""

import os
import subprocess
import sys

import pytest
from run_help import SMALL, records

from bestiary.cli.main import main
from bestiary.cli.new import KINDS, write

WORDS = {
    "algorithm": ["algorithm=my_algorithm"],
    "estimator": ["algorithm=grpo", "advantage=my_estimator"],
    "loss": ["algorithm=grpo", "loss=my_loss"],
    "sampler": ["algorithm=grpo", "sampler=my_sampler"],
    "reward": ["algorithm=grpo", "reward=my_reward"],
}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A plugin of each kind, installed from where it was written."""
    folder = tmp_path_factory.mktemp("new")
    for kind in KINDS:
        write(folder / f"bestiary-my-{kind}", kind, f"my_{kind}")
    install = ["install", "--no-deps", "--no-build-isolation", "--no-index", "--quiet"]
    sources = [str(folder / f"bestiary-my-{kind}") for kind in KINDS]
    subprocess.run(
        [sys.executable, "-m", "pip", *install, "--target", str(folder / "site"), *sources],
        env={**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
        check=True,
    )
    return folder / "site"


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_it_passes_its_own_tests(site, kind):
    tests = site.parent / f"bestiary-my-{kind}" / "tests"
    command = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "--import-mode=importlib"]
    done = subprocess.run(
        [sys.executable, *command, f"--rootdir={tests}", str(tests)],
        env={**os.environ, "PYTHONPATH": str(site), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
    assert "failed" not in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_it_trains_at_once(make_command, site, kind):
    command = make_command(site=site)
    words = [*SMALL, *WORDS[kind], "placement=inprocess", "steps=2", "run_dir=run"]
    done = command("train", *words)
    assert done.status == 0, done
    assert [r["step"] for r in records(command.folder / "run") if r["step"] > 0] == [1, 2]


def test_it_says_what_to_do_next(tmp_path, capsys):
    assert main(["new", "estimator", "my_idea", "--dir", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "pip install" in out
    assert "pytest" in out
    assert "bestiary train algorithm=grpo advantage=my_idea task=addition" in out
    assert (tmp_path / "bestiary-my-idea" / "docs" / "my_idea.md").is_file()


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["algorithm", "grpo"], "the name 'grpo' is taken"),
        (["estimator", "group"], "the name 'group' is taken"),
        (["algorithm", "My-Idea"], "cannot name a plugin"),
        (["algorithm", "class"], "cannot name a plugin"),
        (["algorithms", "my_idea"], "invalid choice"),
    ],
)
def test_names_that_cannot_be_are_refused(tmp_path, capsys, words, text):
    assert main(["new", *words, "--dir", str(tmp_path)]) == 2
    assert text in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_overwritten(tmp_path, capsys):
    (tmp_path / "bestiary-my-idea").mkdir()
    assert main(["new", "loss", "my_idea", "--dir", str(tmp_path)]) == 2
    assert "exists" in capsys.readouterr().err
    assert list((tmp_path / "bestiary-my-idea").iterdir()) == []
