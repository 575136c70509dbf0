"""The example plugins train, and the core knows nothing of them."""

import hashlib
import re
import sys
import tomllib
from pathlib import Path

import pytest
from run_help import SMALL, records, train_here

from bestiary.plugins.manager import load_plugins

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples"
NAMES = ("distillation", "judge", "process_reward", "vine")
SOURCES = sorted((ROOT / "core" / "src").rglob("*.py"))


def digest():
    return hashlib.blake2b(b"".join(path.read_bytes() for path in SOURCES)).hexdigest()


@pytest.fixture(scope="module")
def plugins(tmp_path_factory):
    """All plugins and the examples, installed as metadata beside their sources."""
    site = tmp_path_factory.mktemp("site")
    paths = [str(site)]
    for name in NAMES:
        project = tomllib.loads((FOLDER / name / "pyproject.toml").read_text())["project"]
        info = site / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
        )
        entries = project["entry-points"]["bestiary"]
        lines = "".join(f"{key} = {value}\n" for key, value in entries.items())
        (info / "entry_points.txt").write_text(f"[bestiary]\n{lines}")
        paths.append(str(FOLDER / name / "src"))
    sys.path[:0] = paths
    yield load_plugins()
    for path in paths:
        sys.path.remove(path)


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    from bestiary.models.tiny import TinyOptions, build_tiny

    folder = tmp_path_factory.mktemp("teacher")
    build_tiny(folder, TinyOptions(hidden=32, layers=2, heads=2, seed=7))
    return folder


def run(plugins, folder, algorithm, *words):
    before = digest()
    train_here(
        [f"algorithm={algorithm}", *words, "steps=2", "eval.every=0"], folder, plugins, SMALL
    )
    assert digest() == before
    kept = [r for r in records(folder) if r["step"] > 0]
    assert [r["step"] for r in kept] == [1, 2]
    return kept


def test_a_student_learns_from_a_teachers_logprobs(plugins, tmp_path, teacher):
    words = [f"algorithm.teacher={teacher}", "train_engine.lr=1e-2"]
    kept = run(plugins, tmp_path / "run", "distillation", *words)
    assert kept[0]["kl/teacher"] > 0
    assert all(r["grad_norm"] > 0 for r in kept)


def test_the_teacher_can_be_the_start_of_the_student(plugins, tmp_path):
    from bestiary.models.resolve import resolve_model

    path = resolve_model("tiny:hidden=32,layers=2,heads=2")
    kept = run(plugins, tmp_path / "run", "distillation", f"algorithm.teacher={path}")
    assert kept[0]["kl/teacher"] == pytest.approx(0.0, abs=1e-6)


def test_a_judge_rewards_what_it_would_have_said(plugins, tmp_path):
    kept = run(plugins, tmp_path / "run", "judged")
    assert all(0.0 <= r["reward/mean"] <= 1.0 for r in kept)


def test_a_judge_that_never_agrees_teaches_nothing(plugins, tmp_path):
    words = ["algorithm.question='{prompt}'", "algorithm.verdict='never said'"]
    kept = run(plugins, tmp_path / "run", "judged", *words)
    assert [r["reward/mean"] for r in kept] == [0.0, 0.0]
    assert [r["grad_norm"] for r in kept] == [0.0, 0.0]


def test_a_tree_of_rollouts_makes_values(plugins, tmp_path):
    words = ["reward=custom", f"reward.path={ROOT / 'tests/runs/rewards.py'}:letters"]
    kept = run(plugins, tmp_path / "run", "vine", "algorithm.stride=2", *words)
    assert all(r["grad_norm"] > 0 for r in kept)


def test_step_rewards_reach_their_tokens(plugins, tmp_path):
    words = ["reward=custom", f"reward.path={ROOT / 'tests/runs/rewards.py'}:steps"]
    kept = run(plugins, tmp_path / "run", "process_reward", *words)
    assert all(r["advantages/abs_mean"] > 0 for r in kept)


def test_a_reward_without_spans_is_refused_at_start(plugins, tmp_path):
    from bestiary.errors import ConfigError

    with pytest.raises(ConfigError, match=r"spans.*gives none"):
        run(plugins, tmp_path / "run", "process_reward", "reward=exact_match")


def test_the_core_names_none_of_them():
    modules = [name for folder in NAMES for name in (FOLDER / folder / "src").iterdir()]
    pattern = re.compile("|".join(path.name for path in modules))
    assert not [path for path in SOURCES if pattern.search(path.read_text())]
