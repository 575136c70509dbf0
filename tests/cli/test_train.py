"""``bestiary train``: everything checked, then one process with its own folder and records."""

import json
import os
import subprocess
import sys

import psutil
import pytest

from bestiary.distributed.guard import wait_until_gone


def test_a_run_has_folder_records_and_a_process_of_its_own(launcher, tmp_path, base):
    done = launcher("train", *base, "seed=3", "run_dir=out")
    assert done.status == 0, done.err
    folder = tmp_path / "out"
    seen = json.loads((folder / "seen.json").read_text())
    config = json.loads((folder / "config.json").read_text())
    manifest = json.loads((folder / "manifest.json").read_text())
    assert seen["plan"] == config == manifest["config"]
    assert seen["lock"] is True
    assert manifest["attempt"] == 1
    assert manifest["owners"]["algorithm"] == "algos (zoo-algos 2.0)"
    loaded = [plugin["distribution"] for plugin in manifest["plugins"]["plugins"]]
    assert loaded == ["bestiary", "zoo-algos", "zoo-basics"]
    assert not psutil.pid_exists(seen["pid"])
    assert wait_until_gone(seen["token"]) == []


def test_the_default_folder_is_below_runs(launcher, tmp_path, base):
    assert launcher("train", *base).status == 0
    assert [p.name[16:] for p in (tmp_path / "runs").iterdir()] == ["zoo_grpo-zoo_addition-s0"]


def test_conf_03_two_parallel_starts_get_distinct_folders(launcher, tmp_path, base):
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(2) as pool:
        done = list(pool.map(lambda _: launcher("train", *base), range(2)))
    assert [d.status for d in done] == [0, 0]
    folders = list((tmp_path / "runs").iterdir())
    assert len(folders) == 2
    tokens = {json.loads((f / "seen.json").read_text())["token"] for f in folders}
    assert len(tokens) == 2


def test_the_status_of_the_job_is_the_status_of_the_command(launcher, tmp_path, base):
    done = launcher("train", *base, "seed=5", "run_dir=out", FAIL_SEED="5")
    assert done.status == 1
    assert "training failed on purpose" in done.err
    assert f"the run failed with status 1: {tmp_path / 'out'}" in done.err
    done = launcher("train", *base, "seed=5", STOP_SEED="5")
    assert done.status == 130
    assert "stopped: " in done.err


def test_a_folder_that_is_there_is_refused_before_the_job(launcher, tmp_path, base):
    assert launcher("train", *base, "run_dir=out").status == 0
    first = (tmp_path / "out" / "seen.json").read_text()
    done = launcher("train", *base, "run_dir=out")
    assert done.status == 2
    assert "resume=auto" in done.err
    assert (tmp_path / "out" / "seen.json").read_text() == first


def test_resume_counts_attempts_and_keeps_earlier_records(launcher, tmp_path, base):
    assert launcher("train", *base, "run_dir=out").status == 0
    done = launcher("train", *base, "run_dir=out", "resume=auto", "steps=7")
    assert done.status == 0, done.err
    assert "changed since the last attempt: steps=100 -> 7" in done.err
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["attempt"] == 2
    assert manifest["resumed_from"] == str(tmp_path / "out")
    assert json.loads((tmp_path / "out" / "manifest-1.json").read_text())["attempt"] == 1


def test_res_08_resume_with_another_model_starts_nothing(launcher, tmp_path, base):
    words = [*base[:2], *base[3:], "model=hf", "run_dir=out"]
    assert launcher("train", *words, "model.path=m1").status == 0
    before = {p: p.read_bytes() for p in (tmp_path / "out").iterdir()}
    done = launcher("train", *words, "model.path=m2", "resume=auto")
    assert done.status == 2
    assert "was made with model.path=m1; this run has model.path=m2" in done.err
    assert {p: p.read_bytes() for p in (tmp_path / "out").iterdir()} == before


def test_blocked_plugins_are_blocked_in_the_job_as_well(launcher, tmp_path, base):
    done = launcher("train", *base, "run_dir=out", "--block-plugin", "broken", "--traceback")
    assert done.status == 0, done.err
    assert json.loads((tmp_path / "out" / "seen.json").read_text())["traceback"] == "1"
    done = launcher("train", *base, "--block-plugin", "algos")
    assert done.status == 2
    assert "zoo-algos 2.0): blocked" in done.err


def test_cfg_prints_yaml_that_makes_the_same_run(bestiary, tmp_path, base):
    words = [*base, "seed=3", "loss.clip_range=0.5", "tracker=[zoo_board]", "name='a: b'"]
    done = bestiary("train", *words, "--cfg", "job")
    assert done.status == 0, done.err
    folder = tmp_path / "configs" / "experiment"
    folder.mkdir(parents=True)
    (folder / "saved.yaml").write_text(done.out)
    again = bestiary("train", "--config-dir", "configs", "+experiment=saved", "--cfg", "job")
    assert again.status == 0, again.err
    assert again.out == done.out
    assert "clip_range: 0.5" in done.out
    assert not (tmp_path / "runs").exists()


def test_info_shows_options_with_their_packages(bestiary):
    page = bestiary("train", "--info")
    assert page.status == 0
    assert "  zoo_grpo               (zoo-algos 2.0)" in page.out
    page = bestiary("train", "--info", "algorithm=zoo_grpo")
    assert "algorithm.samples=8   a whole number\n      Responses for each prompt." in page.out


@pytest.mark.parametrize("words", [["--cfg", "job"], ["--info", "algorithm"], ["sed=1"]])
def test_checking_imports_no_torch_and_no_ray(environ, tmp_path, words, base):
    code = (
        "import sys\nfrom bestiary.cli.main import main\nmain(sys.argv[1:])\n"
        "print(sorted({'torch', 'ray', 'transformers'} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "train", *base, *words],
        cwd=tmp_path, env=environ, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stderr.splitlines()[-1] == "[]"


def test_the_command_that_waits_for_a_job_has_no_torch(launcher, tmp_path, base):
    (tmp_path / "spy_job.py").write_text(
        "import os, sys, psutil\n"
        "maps = psutil.Process(os.getppid()).memory_maps()\n"
        "open(sys.argv[1] + '/maps', 'w').write('\\n'.join(m.path for m in maps))\n"
    )
    done = launcher("train", *base, "run_dir=out", job="spy_job")
    assert done.status == 0, done.err
    assert "libtorch" not in (tmp_path / "out" / "maps").read_text()


def test_a_job_sees_its_users_folder_on_the_import_path(launcher, tmp_path, base):
    (tmp_path / "mine.py").write_text("here = True\n")
    (tmp_path / "path_job.py").write_text("import mine\nassert mine.here\n")
    assert launcher("train", *base, job="path_job").status == 0


def test_ctrl_c_reaches_the_job_and_leaves_nothing(environ, tmp_path, base):
    (tmp_path / "waiting_job.py").write_text(
        "import os, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "open(sys.argv[1] + '/ready', 'w').write(os.environ['BESTIARY_JOB'])\n"
        "try:\n    time.sleep(600)\nexcept KeyboardInterrupt:\n    sys.exit(130)\n"
    )
    code = (
        "import sys\nfrom bestiary.cli import launch, main\n"
        "launch.launch.__kwdefaults__['module'] = 'waiting_job'\n"
        "sys.exit(main.main(sys.argv[1:]))\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, "train", *base, "run_dir=out"],
        cwd=tmp_path, env=environ, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    ready = tmp_path / "out" / "ready"
    _wait_for(lambda: ready.exists() and ready.read_text())
    process.send_signal(2)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "stopped: " in err
    assert wait_until_gone(ready.read_text()) == []


def _wait_for(condition, seconds=60):
    import time

    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.05)


def test_this_process_is_left_alone():
    assert "BESTIARY_JOB" not in os.environ
