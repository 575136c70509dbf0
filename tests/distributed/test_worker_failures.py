"""What the user sees when a worker fails, and how soon."""

import os
import signal
import threading
import time

import pytest

from bestiary.distributed.cluster import leftovers
from bestiary.distributed.supervisor import set_context
from bestiary.errors import EXIT_FAILURE, WorkerFailure


def run_steps(group, victim, how):
    for step in range(1, 6):
        set_context(step=step)
        group.run("step", step, victim, how)


def test_fail_05_a_killed_rank_is_named_although_collectives_break_first(make_group):
    group = make_group("Collective", size=4)
    began = time.monotonic()
    with pytest.raises(WorkerFailure) as caught:
        run_steps(group, 2, "SIGKILL")
    assert time.monotonic() - began < 30
    error = caught.value
    first = error.message.splitlines()[0]
    assert first.startswith("rank 2 killed by signal 9 at step 3 (group ")
    assert f"pid {group.homes[2].pid}" in first
    assert f"host {group.homes[2].host!r}" in first
    assert str(group.log_path(2)) in error.message
    assert error.exit_code == EXIT_FAILURE
    assert error.hint.startswith("signal 9 usually comes from the kernel's memory killer")
    with pytest.raises(WorkerFailure) as again:
        group.call("make", [(1, 1)] * 4)
    assert again.value is error
    assert leftovers()[1:] == []  # the placement group is held until close
    group.close()
    assert leftovers() == []


def test_fail_05_an_exception_comes_with_traceback_log_and_step(make_group):
    group = make_group(size=2)
    kept = group.call("make", [(1000, 100)] * 2)
    kept[0].table()
    with pytest.raises(WorkerFailure) as caught:
        run_steps(group, 1, "raise")
    lines = caught.value.message.splitlines()
    assert lines[0].startswith("rank 1 ValueError: step 3 is one too many at step 3 (group ")
    assert lines[1] == "Traceback (most recent call last):"
    assert "    raise ValueError" in "\n".join(lines)
    log = lines[lines.index(f"last lines of {group.log_path(1)}:") :]
    assert "  rank 1 is about to fail by raise" in log
    # What the dead workers had returned belongs to the controller and is still there.
    assert kept[0].get().tokens["x"].values.sum() == sum(range(1000)) * 100


def test_other_ends_and_hangs_are_told_apart(make_group):
    """One rank a group, so that each is cheap: segfault, SIGTERM from outside, exit, hang."""
    group = make_group(size=1)
    os.kill(group.homes[0].pid, signal.SIGTERM)
    with pytest.raises(WorkerFailure, match=r"^rank 0 killed by signal 15 \(group"):
        group.run("sleep", 20)

    group = make_group(size=1)
    with pytest.raises(WorkerFailure, match=r"^rank 0 TypeError: cannot pickle '_thread.lock'"):
        group.run("unpicklable")

    group = make_group(size=1)
    with pytest.raises(WorkerFailure, match=r"^rank 0 killed by signal 11 at step 3") as caught:
        run_steps(group, 0, "SIGSEGV")
    assert "in fail" in caught.value.message

    group = make_group(size=1)
    with pytest.raises(WorkerFailure, match=r"^rank 0 exited with status 5 at step 3"):
        run_steps(group, 0, "leave")


def test_ranks_that_do_not_answer_are_named_with_their_stacks(make_group):
    group = make_group(size=2)
    began = time.monotonic()
    pending = group.submit("sleep", [(60,), (0,)], timeout_s=2)
    with pytest.raises(WorkerFailure) as caught:
        pending.wait()
    assert time.monotonic() - began < 15
    assert caught.value.message.startswith("rank 0 did not answer 'sleep' within 2 s (group ")
    assert "in sleep" in caught.value.message


def test_a_failure_elsewhere_ends_a_wait_and_is_named_first(make_group):
    trainer = make_group(size=1)
    reader = make_group(size=1)
    # The reader's argument will never exist; the failure that is reported is the maker's.
    (lost,) = trainer.call("failing_block", [("raise",)])
    waiting = reader.submit("total", [(lost,)])
    with pytest.raises(WorkerFailure) as caught:
        waiting.wait()
    first = caught.value.message.splitlines()[0]
    assert first.startswith(f"rank 0 ValueError: step 3 is one too many (group {trainer.name!r}")

    # While one thread waits for a slow group, the death of another group's rank ends the wait.
    slow, victim = make_group(size=1), make_group(size=1)
    found = []

    def wait():
        try:
            slow.run("sleep", 60)
        except WorkerFailure as error:
            found.append(error)

    thread = threading.Thread(target=wait)
    victim.submit("sleep", [(60,)])
    thread.start()
    time.sleep(0.5)
    os.kill(victim.homes[0].pid, signal.SIGKILL)
    thread.join(timeout=20)
    assert not thread.is_alive()
    assert found[0].message.startswith(f"rank 0 killed by signal 9 (group {victim.name!r}")
    assert slow.failure is None

    # Closing a group ends the waits for it.
    threading.Timer(0.5, slow.close).start()
    # On a busy machine the end of the process may be seen before the end of the wait.
    ended = "was closed before 'sleep' was answered|was ended by the controller"
    with pytest.raises(WorkerFailure, match=ended):
        slow.run("sleep", 60)
