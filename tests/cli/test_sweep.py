"""``bestiary train -m``: all checked first, each a process of its own, failures listed."""

import json

from bestiary.cli.sweep import last_record


def seen(folder):
    return json.loads((folder / "seen.json").read_text())


def test_conf_05_a_failing_run_does_not_stop_the_others_and_is_listed(launcher, tmp_path, base):
    done = launcher("train", "-m", *base, "seed=0,1,2", "run_dir=out", FAIL_SEED="1")
    assert done.status == 1
    runs = [seen(tmp_path / "out" / str(number)) for number in range(3)]
    assert [run["plan"]["run"]["seed"] for run in runs] == [0, 1, 2]
    assert len({run["pid"] for run in runs}) == 3
    assert len({run["token"] for run in runs}) == 3
    results = [line for line in done.out.splitlines() if "seed=" in line]
    assert [("ok" in line, "failed (1)" in line) for line in results] == [
        (True, False),
        (False, True),
        (True, False),
    ]
    assert "0.5" in results[0]  # the last reward/mean of its record
    assert "[2/3] seed=1" in done.err


def test_a_sweep_of_good_runs_ends_with_0(launcher, tmp_path, base):
    words = [word for word in base if not word.startswith("algorithm")]
    done = launcher("train", "-m", "algorithm=glob(zoo_*,exclude=*sft)", *words)
    assert done.status == 0, done.err
    names = sorted(folder.name[16:] for folder in (tmp_path / "runs").iterdir())
    assert names == ["zoo_grpo-zoo_addition-s0", "zoo_remax-zoo_addition-s0"]


def test_nothing_starts_when_one_of_the_runs_is_wrong(launcher, tmp_path, base):
    done = launcher("train", "-m", *base, "algorithm.samples=4,1", "run_dir=out")
    assert done.status == 2
    assert "run 2 of 2 (algorithm.samples=1): algorithm=zoo_grpo: samples=1" in done.err
    assert list(tmp_path.iterdir()) == []


def test_nothing_starts_when_one_of_the_folders_is_taken(launcher, tmp_path, base):
    (tmp_path / "out" / "1").mkdir(parents=True)
    done = launcher("train", "-m", *base, "seed=0,1", "run_dir=out")
    assert done.status == 2
    assert "is there already" in done.err
    assert not (tmp_path / "out" / "0").exists()


def test_nothing_starts_when_a_warm_start_is_wrong(launcher, tmp_path, base):
    warm = "model.warm_start={algorithm:zoo_sf}"
    done = launcher("train", "-m", *base, warm, "seed=0,1", "run_dir=out")
    assert done.status == 2
    assert "no algorithm 'zoo_sf'; did you mean 'zoo_sft'" in done.err
    assert list(tmp_path.iterdir()) == []


def test_a_stopped_run_stops_the_sweep(launcher, tmp_path, base):
    done = launcher("train", "-m", *base, "seed=0,1,2", "run_dir=out", STOP_SEED="1")
    assert done.status == 130
    assert "stopped; 1 runs were not started" in done.err
    assert "not started" in done.out
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["0", "1"]


def test_folders_that_are_swept_stay_as_they_are(launcher, tmp_path, base):
    done = launcher("train", "-m", *base, "run_dir=a,b")
    assert done.status == 0, done.err
    assert (tmp_path / "a" / "seen.json").exists()
    assert (tmp_path / "b" / "seen.json").exists()


def test_cfg_prints_every_run_of_a_sweep(bestiary, base):
    done = bestiary("train", "-m", *base, "seed=4,5", "--cfg", "job")
    assert done.status == 0
    documents = done.out.split("---\n")
    assert ["seed: 4" in documents[0], "seed: 5" in documents[1]] == [True, True]


def test_the_last_record_survives_a_line_that_was_cut_off(tmp_path):
    assert last_record(tmp_path) == {}
    (tmp_path / "metrics.jsonl").write_text(
        '{"step": 1, "reward/mean": 0.25, "eval/exact_match": 0.125}\n'
        '{"step": 2, "reward/mean": 0.5}\n{"step": 3, "rew'
    )
    assert last_record(tmp_path) == {
        "step": "2", "reward/mean": "0.5", "eval/exact_match": "0.125",
    }  # fmt: skip
