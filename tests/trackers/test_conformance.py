import pytest

from bestiary.tracking import JsonlTracker, NamedTracker, Trackers, read_metrics
from bestiary_tensorboard.options import TensorBoardOptions
from bestiary_tensorboard.tracker import TensorBoardTracker
from bestiary_wandb.options import WandbOptions
from bestiary_wandb.tracker import WandbTracker

MAKERS = {
    "jsonl": JsonlTracker,
    "wandb-offline": lambda: WandbTracker(WandbOptions()),
    "wandb-disabled": lambda: WandbTracker(WandbOptions(mode="disabled")),
    "tensorboard": lambda: TensorBoardTracker(TensorBoardOptions()),
}


@pytest.mark.parametrize("status", ["finished", "failed", "stopped"])
@pytest.mark.parametrize("name", MAKERS)
def test_a_tracker_lives_and_leaves_nothing_behind(name, status, conform):
    conform(MAKERS[name], status)


def test_all_trackers_together_behave_as_one(conform):
    run = conform(
        lambda: Trackers([NamedTracker(name, None, make()) for name, make in MAKERS.items()]),
        "finished",
    )
    records = read_metrics(run.run_dir / "metrics.jsonl")
    assert [r["step"] for r in records] == [0, 1, 2]
    assert records[2]["reward/mean"] == 0.75


def test_members_are_registered_through_their_entry_points():
    from importlib.metadata import entry_points

    found = {e.name: e.value for e in entry_points(group="bestiary")}
    assert found["wandb"] == "bestiary_wandb"
    assert found["tensorboard"] == "bestiary_tensorboard"
