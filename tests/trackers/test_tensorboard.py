import math
import subprocess
import sys

import pytest

from bestiary_tensorboard.options import TensorBoardOptions
from bestiary_tensorboard.tracker import TensorBoardTracker


def _read(run_dir, folder="tensorboard"):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run_dir / folder), size_guidance={"scalars": 0, "tensors": 0})
    events.Reload()
    return events


def _text(events, tag):
    return [e.tensor_proto.string_val[0].decode() for e in events.Tensors(tag)]


def _track(run, steps, value):
    tracker = TensorBoardTracker(TensorBoardOptions())
    tracker.start(run)
    for step in steps:
        tracker.log(step, {"reward/mean": value, "loss/policy": -value})
    tracker.samples(steps[-1], [{"prompt": "a|b\nc", "response": "d", "reward": 1.0}])
    tracker.finish("finished")


def test_scalars_samples_and_config_are_read_back(run_info):
    run = run_info()
    _track(run, range(1, 4), 0.5)
    events = _read(run.run_dir)
    assert set(events.Tags()["scalars"]) == {"reward/mean", "loss/policy"}
    assert [(e.step, e.value) for e in events.Scalars("reward/mean")] == [
        (i, 0.5) for i in (1, 2, 3)
    ]
    assert "a\\|b⏎c | d | 1.0" in _text(events, "samples")[0]
    assert '"name": "grpo"' in _text(events, "config")[0]
    assert '"hash": "abc"' in _text(events, "fingerprint")[0]


def test_res_05_steps_of_a_later_attempt_replace_those_of_an_earlier_one(run_info):
    _track(run_info(attempt=1), range(195, 213), 1.0)
    _track(run_info(attempt=2), range(201, 221), 2.0)
    scalars = _read(run_info().run_dir).Scalars("reward/mean")
    assert [e.step for e in scalars] == list(range(195, 221))
    assert [e.value for e in scalars] == [1.0] * 6 + [2.0] * 20


def test_nan_is_kept(run_info):
    run = run_info()
    tracker = TensorBoardTracker(TensorBoardOptions(folder="events"))
    tracker.start(run)
    tracker.log(1, {"kl/reference": float("nan")})
    tracker.finish("failed")
    (event,) = _read(run.run_dir, "events").Scalars("kl/reference")
    assert math.isnan(event.value)


def test_it_loads_neither_torch_nor_tensorflow(tmp_path):
    code = """
import sys
from pathlib import Path
from bestiary.protocols import RunInfo
from bestiary_tensorboard.options import TensorBoardOptions
from bestiary_tensorboard.tracker import TensorBoardTracker
t = TensorBoardTracker(TensorBoardOptions())
t.start(RunInfo(Path(sys.argv[1]), "n", {}, {}))
t.log(1, {"a": 1.0})
t.finish("finished")
assert not {"torch", "tensorflow", "ray"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, timeout=60)


@pytest.mark.parametrize("options", [{"folder": ""}, {"flush_s": 0.0}])
def test_options_are_checked(options):
    with pytest.raises(ValueError, match="tensorboard"):
        TensorBoardOptions(**options)
