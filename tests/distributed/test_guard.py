"""Nothing is left of a job, whatever happens to whom (FAIL-02)."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from bestiary.distributed import reaper
from bestiary.distributed.guard import GuardedProcess, clean, run_guarded, wait_until_gone
from bestiary.distributed.tokens import JOB_VARIABLE, new_token, temp_dir

SCRIPT = Path(__file__).parent / "guarded_job.py"
WAYS = ("SIGINT", "SIGTERM", "exception", "SIGKILL of driver", "SIGKILL of launcher")


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    """All five jobs start at the same time, since starting takes longest."""
    root = tmp_path_factory.mktemp("jobs")
    started = {}
    for how in WAYS:
        folder = root / new_token()
        folder.mkdir()
        argv = [sys.executable, str(SCRIPT), "launch", str(folder), how]
        with (folder / "output").open("w") as output:
            launcher = subprocess.Popen(argv, stdout=output, stderr=output, start_new_session=True)
        started[how] = (launcher, folder)
    yield started
    for launcher, folder in started.values():
        launcher.kill()
        launcher.wait()
        clean(folder.name, grace_s=0.1)


def wait_for(path, launcher, timeout_s=120):
    deadline = time.monotonic() + timeout_s
    while not path.exists():
        output = path.parent / "output"
        assert launcher.poll() is None, output.read_text()
        assert time.monotonic() < deadline, output.read_text()
        time.sleep(0.1)
    return json.loads(path.read_text())


def lives(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize("how", WAYS)
def test_fail_02_no_process_port_or_segment_is_left(jobs, how):
    launcher, folder = jobs[how]
    record = wait_for(folder / "ready", launcher)
    mine = [record["driver"], *record["workers"], *record["grandchildren"]]
    assert len(mine) == 7
    assert all(lives(pid) for pid in mine)
    everything = {p.pid for p in reaper.marked(JOB_VARIABLE, folder.name)}
    assert everything > set(mine)
    assert all(Path("/dev/shm", name.lstrip("/")).exists() for name in record["segments"])

    if how == "exception":
        (folder / "go").touch()
    elif how == "SIGKILL of driver":
        os.kill(record["driver"], signal.SIGKILL)
    elif how == "SIGKILL of launcher":
        launcher.kill()
    else:
        launcher.send_signal(getattr(signal, how))

    assert wait_until_gone(folder.name, timeout_s=10) == []
    # A process that is being ended has lost its environment already.
    deadline = time.monotonic() + 5
    while any(lives(pid) for pid in everything) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert [pid for pid in everything if lives(pid)] == []
    for port in record["ports"]:
        with socket.socket() as probe:
            # Not a bind: some other program may use the number for a connection of its own by now.
            assert probe.connect_ex(("127.0.0.1", port)) != 0
    status = launcher.wait(timeout=20)
    if how in ("SIGINT", "SIGTERM"):
        assert status == 128 + getattr(signal, how)
    assert status != 0
    deadline = time.monotonic() + 5  # with the launcher killed, nobody waits for the guard
    while Path(record["temp"]).exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not Path(record["temp"]).exists()
    assert [n for n in record["segments"] if Path("/dev/shm", n.lstrip("/")).exists()] == []
    if how == "SIGKILL of driver":
        assert (folder / "status").read_text() == str(128 + signal.SIGKILL)
    if how == "exception":
        assert "RuntimeError: the driver fails" in (folder / "output").read_text()


# --------------------------------------------------------------------------- without a cluster


def python(*lines):
    return [sys.executable, "-c", "\n".join(lines)]


def test_exit_status_and_environment_reach_their_ends(tmp_path):
    token = new_token()
    code = f"import os; open({str(tmp_path / 'env')!r}, 'w').write(os.environ['BESTIARY_JOB'])"
    assert run_guarded(python(code, "raise SystemExit(7)"), token=token) == 7
    assert (tmp_path / "env").read_text() == token
    assert not temp_dir(token).exists()


def test_a_command_that_does_not_exist_leaves_nothing():
    token = new_token()
    with pytest.raises(FileNotFoundError):
        run_guarded(["/does/not/exist"], token=token)
    assert not temp_dir(token).exists()


def test_processes_that_hide_their_environment_are_found_as_children():
    token = new_token()
    hidden = "import subprocess as s; s.Popen(['sleep', '300'], env={}, start_new_session=True)"
    with GuardedProcess(python(hidden, "import time; time.sleep(300)"), token=token) as guarded:
        deadline = time.monotonic() + 20
        while len(reaper.marked(JOB_VARIABLE, token)) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        found = reaper.marked(JOB_VARIABLE, token)
        assert len(found) == 2
        assert {p.pid for p in found} >= {guarded.process.pid}
    assert [p.pid for p in found if lives(p.pid)] == []


def test_processes_that_ignore_requests_are_killed_in_time():
    token = new_token()
    stubborn = "import signal, time; signal.signal(15, signal.SIG_IGN); print('x', flush=True)"
    guarded = GuardedProcess(
        python(stubborn, "time.sleep(300)"), token=token, stdout=subprocess.PIPE, cleanup_s=0.3
    )
    assert guarded.process.stdout.readline() == b"x\n"
    began = time.monotonic()
    guarded.close()
    guarded.process.stdout.close()
    assert time.monotonic() - began < 5
    assert guarded.process.returncode == -signal.SIGKILL


def test_the_clean_up_of_a_job_leaves_its_cluster_alone():
    cluster, job = new_token(), new_token()
    sleep = python("import time; time.sleep(300)")
    outer = GuardedProcess(sleep, variable="BESTIARY_CLUSTER", token=cluster, cleanup_s=0.3)
    env = {**os.environ, "BESTIARY_CLUSTER": cluster}
    inner = GuardedProcess(sleep, env, token=job, cleanup_s=0.3)
    other = GuardedProcess(sleep, env, token=new_token(), cleanup_s=0.3)
    inner.close()
    assert outer.process.poll() is None
    assert other.process.poll() is None
    outer.close()  # the cluster takes its jobs with it
    assert other.process.wait(timeout=5) != 0
    other.close()


def test_the_guard_s_work_is_done_even_when_the_guard_was_killed():
    guarded = GuardedProcess(python("import time; time.sleep(300)"), cleanup_s=0.3)
    guarded._guard._process.kill()
    guarded.close()
    assert guarded.process.returncode is not None
    assert not guarded.temp.exists()


def test_a_second_interrupt_kills_a_job_that_does_not_end(tmp_path):
    stubborn = [
        "import signal, time, pathlib",
        "signal.signal(signal.SIGINT, signal.SIG_IGN)",
        f"pathlib.Path({str(tmp_path / 'up')!r}).touch()",
        "time.sleep(300)",
    ]
    launch = [
        "from bestiary.distributed.guard import run_guarded",
        f"raise SystemExit(run_guarded({python(*stubborn)!r}, grace_s=60))",
    ]
    launcher = subprocess.Popen(python(*launch), start_new_session=True)
    deadline = time.monotonic() + 30
    while not (tmp_path / "up").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    launcher.send_signal(signal.SIGINT)
    time.sleep(0.5)
    assert launcher.poll() is None
    launcher.send_signal(signal.SIGINT)
    assert launcher.wait(timeout=15) == 128 + signal.SIGINT


def test_segments_of_others_are_left_alone():
    from multiprocessing.shared_memory import SharedMemory

    token = new_token()
    path = Path("/dev/shm") / f"bst-{token}-x"
    path.write_bytes(b"x")
    mine = SharedMemory(create=True, size=4096)
    try:
        held = {Path("/dev/shm") / mine._name.lstrip("/")}
        assert reaper.remove_segments(token, held) == [path]
        assert not path.exists()
        assert all(path.exists() for path in held)
    finally:
        mine.close()
        mine.unlink()


def test_folders_of_jobs_leave_room_for_sockets(monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", "/a/very/long/folder/for/temporary/files/of/this/user")
    assert str(temp_dir("0123456789ab")) == "/tmp/bst-0123456789ab"


def test_a_process_that_has_just_begun_its_program_is_waited_for(monkeypatch):
    # The kernel shows an empty environment between exec and the program's first instruction.
    child = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(60)"],
        env={**os.environ, "BESTIARY_TEST_TOKEN": "young"},
    )
    try:
        real, asked = psutil.Process.environ, []

        def environ(process):
            asked.append(process.pid)
            first = process.pid == child.pid and asked.count(child.pid) == 1
            return {} if first else real(process)

        monkeypatch.setattr(psutil.Process, "environ", environ)
        found = [p.pid for p in reaper.marked("BESTIARY_TEST_TOKEN", "young")]
    finally:
        child.kill()
        child.wait()
    assert found == [child.pid]
    assert asked.count(child.pid) >= 2
