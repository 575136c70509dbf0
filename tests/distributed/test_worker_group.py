"""Worker groups on real processes; the few groups here are shared, since starting one is slow."""

import time

import numpy as np
import psutil
import pytest

from bestiary.distributed.cluster import leftovers
from bestiary.distributed.inprocess import InProcessGroup
from bestiary.distributed.pools import ResourcePool, reserve
from bestiary.distributed.traffic import driver_bytes
from bestiary.distributed.worker_group import WorkerGroup
from bestiary.errors import DataError, PlacementError, WorkerFailure


def test_blocks_stay_remote_and_closing_leaves_nothing(make_group, tmp_path):
    group = make_group(size=2, args={"closed": str(tmp_path / "closed")})

    seats = group.run("where")
    assert [(seat.rank, seat.world, seat.device) for seat in seats] == [
        (0, 2, "cpu"),
        (1, 2, "cpu"),
    ]
    assert group.run("environment", "OMP_NUM_THREADS") == ["1", "1"]
    assert group.run("environment", "CUDA_VISIBLE_DEVICES") == ["", ""]

    # A block of 8 MB goes from each rank to the other; the controller sees the small answer only.
    before = driver_bytes()
    made = group.call("make", [(1000, 1000)] * 2)
    totals = group.submit("total", [(made[1],), (made[0],)]).wait()
    assert totals == [
        (float((100 + np.arange(1000)).sum() * 1000), False),
        (float(np.arange(1000).sum() * 1000), False),
    ]
    assert made[0].report() == {"tokens": 1_000_000}
    assert made[1].table()["score"].tolist() == list(range(100, 1100))
    small = driver_bytes() - before
    assert small < 100_000
    assert made[0].get().tokens["x"].size_bytes == 8_008_008
    assert driver_bytes() - before - small == 8_008_008

    # A block made from a block, in one go, equals what one process computes.
    squared = group.call("square", [(made[0],), (made[1],)])
    solo = InProcessGroup("solo", "fake_workers:Arithmetic", None)
    (alone,) = solo.call("square", [tuple(solo.call("make", [(1000, 1000)]))])
    assert squared[0].report() == alone.report()
    squared[1].report()  # so that its answer is counted before the next measurement
    assert np.array_equal(squared[0].get().tokens["y"].values, alone.get().tokens["y"].values)

    # Small blocks pass through the controller, and that is counted.
    before = driver_bytes()
    small_block = group.call("make", [(10, 10)] * 2)
    small_block[0].table(), small_block[1].table()
    assert 2 * 800 < driver_bytes() - before < 5000

    # Big equal arguments are sent once.
    before = driver_bytes()
    assert group.run("size_of", b"x" * 1_000_000) == [1_000_000] * 2
    assert 1_000_000 <= driver_bytes() - before < 1_001_000

    # Calls run in the order of submission on every rank.
    for i in range(20):
        group.submit("record", [(i,)] * 2)
    assert group.run("record", 20) == [list(range(21))] * 2

    with pytest.raises(ValueError, match="has 2 ranks, arguments for 1 given"):
        group.call("make", [(1, 1)])

    children = group.run("child")
    pids = [home.pid for home in group.homes] + children
    group.close()
    assert sorted(p.name for p in tmp_path.glob("closed-*")) == ["closed-0", "closed-1"]
    assert [pid for pid in pids if psutil.pid_exists(pid) and alive(pid)] == []
    assert leftovers() == []
    assert sorted(path.name for path in tmp_path.iterdir() if path.suffix == ".log") == [
        f"{group.name}-rank0.log",
        f"{group.name}-rank1.log",
    ]
    assert list(tmp_path.glob("*.exit*")) + list(tmp_path.glob(".*")) == []
    group.close()
    with pytest.raises(WorkerFailure, match="is closed, 'where' cannot be called"):
        group.run("where")


def alive(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_ranks_form_a_process_group_and_reduce_in_order(make_group):
    group = make_group("Collective", size=2)
    assert group.run("step", 1, 0, "raise") == [2.0, 2.0]
    expected = ([3.0, 6.0], [2.0, 4.0], "torch.float32")
    assert group.run("reduce", [1.0, 2.0]) == [expected, expected]
    solo = InProcessGroup("solo", "fake_workers:Collective", None)
    assert solo.run("reduce", [1.0, 2.0]) == [([1.0, 2.0], [1.0, 2.0], "torch.float32")]
    assert group.run("environment", "GLOO_SOCKET_IFNAME") == ["lo", "lo"]


def test_use_01_an_impossible_demand_is_refused_in_seconds(cluster, tmp_path):
    began = time.monotonic()
    pool = ResourcePool(num_gpus=8, name="train", roles=("actor",))
    with pytest.raises(PlacementError) as caught:
        WorkerGroup("g", pool, "fake_workers:Arithmetic", None, log_dir=tmp_path)
    assert "role 'actor' (pool 'train'): gpu 8 requested, 4 available" in caught.value.message
    slots = ResourcePool(devices=[f"cpu:{i}" for i in range(6)], threads=10, roles=("critic",))
    with pytest.raises(PlacementError, match=r"'critic'.*cpu 60 requested, 32 available"):
        reserve(slots)
    assert time.monotonic() - began < 15
    assert leftovers() == []


def test_devices_that_are_taken_are_waited_for_and_then_named(cluster):
    held = reserve(ResourcePool(num_gpus=3, name="first"))
    try:
        with pytest.raises(PlacementError) as caught:
            reserve(ResourcePool(num_gpus=2, name="second", timeout_s=1.0))
        assert "(pool 'second'): the cluster did not give its devices within 1 s" in str(
            caught.value
        )
        assert "free now: cpu 29, gpu 1" in str(caught.value)
    finally:
        held.release()
    held.release()
    assert leftovers() == []


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"devices": ["cpu:0", "cuda:0"]}, "devices of one kind"),
        ({"devices": ["cpu:0", "cpu:0"]}, "different devices"),
        ({"devices": ["gpu0"]}, "'gpu0' is not of the form"),
        ({"devices": ["cuda:0"], "num_gpus": 1}, "not both"),
        ({}, "different devices of one kind, got"),
    ],
)
def test_pools_that_make_no_sense_are_refused(given, message):
    with pytest.raises(PlacementError, match=message):
        ResourcePool(name="p", **given)


def test_a_worker_that_cannot_be_built_leaves_nothing(make_group):
    with pytest.raises(WorkerFailure) as caught:
        make_group("Broken", size=2, args=1)
    error = caught.value
    assert error.message.startswith("rank 1 DataError: no such file (group ")
    assert (error.hint, error.exit_code, error.owner.distribution) == ("make it", 2, "dist")
    assert isinstance(error.__cause__, DataError)
    assert leftovers() == []
