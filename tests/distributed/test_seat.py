import pytest

from bestiary.distributed.seat import apply_visible_devices, visible_devices


@pytest.mark.parametrize("before", ["0,1,2,3,4,5,6,7", "3", ""])
def test_dist_10_the_worker_sees_its_own_device_as_number_0(before):
    assert visible_devices([3], {"CUDA_VISIBLE_DEVICES": before}) == ("3", 0)


def test_a_worker_without_an_accelerator_sees_none():
    assert visible_devices([], {"CUDA_VISIBLE_DEVICES": "0,1"}) == ("", -1)


def test_uuids_and_several_devices_pass():
    assert visible_devices(["GPU-a", "GPU-b"], {}) == ("GPU-a,GPU-b", 0)


def test_a_device_that_was_hidden_afterwards_is_refused():
    with pytest.raises(ValueError, match=r"\['3'\] are not among the visible ones \['0', '1'\]"):
        visible_devices([3], {"CUDA_VISIBLE_DEVICES": "0,1"})


def test_applying_narrows_this_process(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3,4,5,6,7")
    assert apply_visible_devices([3]) == "cuda:0"
    import os

    assert os.environ["CUDA_VISIBLE_DEVICES"] == "3"
    assert apply_visible_devices([]) == "cpu"
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""
