import pytest

from bestiary.distributed.inprocess import InProcessGroup
from bestiary.distributed.supervisor import set_context
from bestiary.errors import DataError, WorkerFailure


def test_calls_have_the_face_of_a_worker_group():
    group = InProcessGroup("solo", "fake_workers:Arithmetic", None)
    (made,) = group.call("make", [(2, 3)])
    assert made.report() == {"tokens": 6}
    assert made.table()["score"].tolist() == [0.0, 1.0]
    (squared,) = group.call("square", [(made,)])
    assert squared.get().tokens["y"].values.tolist() == [0, 0, 0, 1, 1, 1]
    assert group.run("record", 4) == [[4]]
    assert group.submit("record", [(5,)]).wait() == [[4, 5]]
    assert (group.size, group.run("where")[0].world) == (1, 1)


def test_a_failure_looks_like_that_of_a_worker_and_the_group_is_dead():
    group = InProcessGroup("solo", "fake_workers:Arithmetic", None)
    set_context(step=3)
    with pytest.raises(WorkerFailure) as caught:
        group.run("step", 3, 0, "raise")
    set_context()
    first, *rest = caught.value.message.splitlines()
    assert first.startswith("rank 0 ValueError: step 3 is one too many at step 3 (group 'solo'")
    assert any("Traceback" in line for line in rest)
    assert isinstance(caught.value.__cause__, ValueError)
    with pytest.raises(WorkerFailure) as again:
        group.run("record", 1)
    assert again.value is caught.value


def test_what_cannot_be_built_says_why():
    with pytest.raises(WorkerFailure, match="rank 0 DataError: no such file") as caught:
        InProcessGroup("solo", "fake_workers:Broken", 0)
    assert isinstance(caught.value.__cause__, DataError)
    with pytest.raises(WorkerFailure, match=r"not of the form 'package\.module:Class'"):
        InProcessGroup("solo", "fake_workers", 0)


def test_a_method_called_for_a_block_must_return_one():
    group = InProcessGroup("solo", "fake_workers:Arithmetic", None)
    with pytest.raises(WorkerFailure, match=r"returned int; wanted \(RowBlock, report\)"):
        group.call("no_block", [()])


def test_closing_twice_closes_the_worker_once(tmp_path):
    group = InProcessGroup("solo", "fake_workers:Arithmetic", {"closed": str(tmp_path / "c")})
    group.close()
    (tmp_path / "c-0").unlink()
    group.close()
    assert not (tmp_path / "c-0").exists()
    with pytest.raises(WorkerFailure, match="is closed, 'where' cannot be called"):
        group.run("where")
