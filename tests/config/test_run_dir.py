"""Folders of runs are claimed exclusively; only the same run may go on in one."""

import json
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path

import pytest

from bestiary.config.run_dir import check_free, claim, default_name, hold, read_plan, write_config
from bestiary.errors import CheckpointError, ConfigError

NOON = time.strptime("2030-01-02 12:00:00", "%Y-%m-%d %H:%M:%S")


def with_run(plan, **values):
    return replace(plan, run=replace(plan.run, **values))


def test_the_default_name_says_when_what_and_which_seed(run):
    assert default_name(run("seed=3"), NOON) == "20300102-120000-grpo-addition-s3"


def test_conf_03_equal_names_in_one_second_get_distinct_folders(run, tmp_path):
    plan = run()
    claims = [claim(plan, parent=tmp_path, now=NOON).folder.name for _ in range(3)]
    name = "20300102-120000-grpo-addition-s0"
    assert claims == [name, f"{name}-2", f"{name}-3"]


def test_conf_03_parallel_starts_never_share_a_folder(tmp_path):
    code = textwrap.dedent(
        """
        import sys, time
        sys.path[:0] = [sys.argv[1], sys.argv[2]]
        from conftest import closed_set
        from bestiary.config.compose import compose_run
        from bestiary.config.run_dir import claim
        from pathlib import Path
        plan = compose_run(["algorithm=grpo", "task=addition", "model=tiny"], None, closed_set())
        print("ready", flush=True)
        sys.stdin.readline()
        now = time.strptime("2030", "%Y")
        print([claim(plan, parent=Path(sys.argv[3]), now=now).folder.name for _ in range(20)])
        """
    )
    here = Path(__file__).parent
    started = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(here), str(here / "dists"), str(tmp_path)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for _ in range(2)
    ]  # fmt: skip
    for process in started:
        assert process.stdout.readline() == "ready\n"
    for process in started:
        process.stdin.write("go\n")
        process.stdin.flush()
    names = [json.loads(p.communicate()[0].replace("'", '"')) for p in started]
    assert len({*names[0], *names[1]}) == 40
    assert len(list(tmp_path.iterdir())) == 40


def test_an_explicit_folder_that_is_there_is_refused_with_the_way_out(run, tmp_path):
    folder = tmp_path / "out"
    plan = with_run(run(), run_dir=str(folder))
    check_free(plan)
    assert claim(plan).folder == folder
    for refuse in (claim, check_free):
        with pytest.raises(ConfigError) as caught:
            refuse(plan)
        assert str(caught.value) == (
            f"run_dir={folder} is there already, and runs never share a folder\n"
            "  -> choose another run_dir, or go on with that run: resume=auto"
        )


def test_a_folder_that_cannot_be_made_is_a_clear_error(run, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be made"):
        claim(with_run(run(), run_dir=str(tmp_path / "file" / "out")))


def test_the_config_is_read_back_as_the_same_plan(run, plugins, tmp_path):
    plan = run("loss.clip_range=0.3")
    write_config(tmp_path, plan)
    assert read_plan(tmp_path, plugins) == plan
    assert [p.name for p in tmp_path.iterdir()] == ["config.json"]


def test_a_config_with_a_secret_is_readable_by_its_owner_only(run, tmp_path):
    write_config(tmp_path, run("tracker=[board]", "tracker.board.api_key=abc"))
    assert (tmp_path / "config.json").stat().st_mode & 0o077 == 0


# --------------------------------------------------------------------------- going on


@pytest.fixture
def started(run, tmp_path):
    """A run that has left its records, with a checkpoint."""
    folder = tmp_path / "out"
    plan = run(f"run_dir={folder}", "model=hf", "model.path=m1")
    write_config(claim(plan).folder, plan)
    (folder / "manifest.json").write_text(json.dumps({"attempt": 1}))
    (folder / "checkpoints" / "step_40").mkdir(parents=True)
    return folder


def again(run, *words):
    return run("model=hf", "model.path=m1", *words)


def test_resume_auto_goes_on_in_the_same_folder(run, started):
    taken = claim(again(run, f"run_dir={started}", "resume=auto"))
    assert (taken.folder, taken.attempt, taken.resumed_from) == (started, 2, started)
    assert taken.changed == ()


def test_resume_auto_starts_where_there_is_nothing_yet(run, tmp_path):
    taken = claim(again(run, f"run_dir={tmp_path / 'new'}", "resume=auto"))
    assert (taken.attempt, taken.resumed_from) == (1, None)


def test_resume_auto_needs_a_folder_and_a_run_in_it(run, tmp_path):
    with pytest.raises(ConfigError, match="resume=auto needs to know the folder"):
        claim(again(run, "resume=auto"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match=r"holds no run \(no config.json\)"):
        claim(again(run, f"run_dir={tmp_path / 'empty'}", "resume=auto"))


def test_resume_of_a_checkpoint_goes_on_in_its_run(run, started):
    checkpoint = started / "checkpoints" / "step_40"
    taken = claim(again(run, f"resume={checkpoint}"))
    assert (taken.folder, taken.resumed_from) == (started, checkpoint)


def test_resume_into_another_folder_is_a_branch(run, started, tmp_path):
    taken = claim(again(run, f"resume={started}", f"run_dir={tmp_path / 'branch'}"))
    assert (taken.folder, taken.attempt) == (tmp_path / "branch", 1)
    assert taken.resumed_from == started


def test_resume_of_nothing_is_refused(run, tmp_path):
    with pytest.raises(CheckpointError, match="there is no run and no checkpoint of one"):
        claim(again(run, f"resume={tmp_path / 'nowhere' / 'a' / 'b'}"))


def test_res_08_another_model_is_refused_before_any_write_naming_both(run, started):
    before = sorted(started.rglob("*"))
    plan = run("model=hf", "model.path=m2", f"run_dir={started}", "resume=auto")
    with pytest.raises(CheckpointError) as caught:
        claim(plan)
    assert str(caught.value) == (
        f"{started} was made with model.path=m1; this run has model.path=m2\n"
        "  -> set model.path=m1 to go on with it, or choose another run_dir"
    )
    assert caught.value.exit_code == 2
    assert sorted(started.rglob("*")) == before


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["model=tiny"], "made with model.path=m1; this run has model.path=tiny:"),
        (["algorithm=remax"], "made with algorithm=grpo; this run has algorithm=remax"),
        (["task.digits=3"], "made with task.digits=2; this run has task.digits=3"),
        (["seed=1"], "made with seed=0; this run has seed=1"),
        (["model.warm_start={steps:5}"], "made with model.warm_start=null; this run has"),
    ],
)
def test_res_08_what_made_the_run_must_be_the_same(run, started, words, message):
    base = ["model=hf", "model.path=m1"] if "model=tiny" not in words else []
    with pytest.raises(CheckpointError, match="was made with") as caught:
        claim(run(*base, *words, f"run_dir={started}", "resume=auto"))
    assert message in str(caught.value)


def test_other_settings_may_change_and_are_reported(run, started):
    words = ["steps=7", "eval.every=1", "train_engine.lr=0.5", "model.dtype=bf16"]
    taken = claim(again(run, *words, f"run_dir={started}", "resume=auto"))
    assert taken.changed == (
        'model.dtype=fp32 -> "bf16"',
        "train_engine.lr=1e-05 -> 0.5",
        "eval.every=10 -> 1",
        "steps=100 -> 7",
    )


def test_earlier_records_are_kept_under_their_number(run, started):
    plan = again(run, "steps=7")
    write_config(started, plan, attempt=2)
    assert json.loads((started / "config.json").read_text())["run"]["steps"] == 7
    assert json.loads((started / "config-1.json").read_text())["run"]["steps"] == 100


@pytest.mark.parametrize("text", ["", "[]", "{"])
def test_an_unreadable_config_is_a_checkpoint_error(run, started, text):
    (started / "config.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"config\.json"):
        claim(again(run, f"run_dir={started}", "resume=auto"))


def test_the_folder_of_a_live_run_cannot_be_taken(tmp_path):
    code = (
        "import sys; from pathlib import Path; from bestiary.config.run_dir import hold\n"
        "with hold(Path(sys.argv[1])): print('held', flush=True); sys.stdin.readline()"
    )
    live = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert live.stdout.readline() == "held\n"
    with pytest.raises(ConfigError, match=f"is going on \\(process {live.pid}\\)"), hold(tmp_path):
        pass
    live.kill()
    live.communicate()
    with hold(tmp_path):
        assert (tmp_path / ".lock").exists()
