import pickle
import signal

import pytest

from bestiary.distributed.exits import FIRST_LINE, read_exit
from bestiary.distributed.failures import (
    Failure,
    RankError,
    UpstreamError,
    blame,
    failure_error,
    root_cause,
    tail,
)
from bestiary.errors import DataError, Owner


def failed(rank, kind, what, **more):
    return Failure(group="g", rank=rank, host="h", pid=7, kind=kind, what=what, **more)


def test_a_death_explains_broken_collectives_that_were_seen_before_it():
    echoes = [failed(r, "collective", "RuntimeError") for r in (0, 1)]
    death = failed(2, "signal", "killed by signal 9")
    assert root_cause([*echoes, death]) is death
    assert root_cause([failed(0, "upstream", "UpstreamError"), echoes[1]]) is echoes[1]


def test_first_line_of_a_killed_rank():
    death = failed(2, "signal", "killed by signal 9", context="at step 3")
    error = failure_error([failed(0, "collective", "RuntimeError", detail="gloo"), death])
    first, *rest = error.message.splitlines()
    assert first == "rank 2 killed by signal 9 at step 3 (group 'g', host 'h', pid 7)"
    assert "rank 0 RuntimeError: gloo" in "\n".join(rest)


def test_first_line_of_an_exception_then_its_traceback():
    raised = failed(1, "raised", "ValueError", detail="bad\nworse", trace="Traceback: x")
    error = failure_error([raised])
    lines = error.message.splitlines()
    assert lines[:2] == ["rank 1 ValueError: bad (group 'g', host 'h', pid 7)", "Traceback: x"]


def test_errors_of_the_project_keep_hint_owner_and_exit_status():
    original = DataError("bad rows", hint="look at row 7", owner=Owner("p", "d", "1"))
    error = failure_error([failed(0, "raised", "DataError", original=original)])
    assert (error.hint, error.exit_code) == ("look at row 7", 2)
    assert error.owner == Owner("p", "d", "1")
    assert error.__cause__ is original


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (RuntimeError("gloo: Connection closed by peer [127.0.0.1]:1"), "collective"),
        (RuntimeError("size mismatch"), "raised"),
        (ValueError("closed by peer"), "raised"),
        (UpstreamError("x"), "upstream"),
    ],
)
def test_echoes_are_told_from_causes(error, kind):
    assert blame(error) == kind


def test_rank_errors_survive_pickling():
    try:
        raise DataError("bad", hint="h")
    except DataError as error:
        sent = pickle.loads(pickle.dumps(RankError.of(error)))
    assert (sent.type_name, sent.message, sent.kind) == ("DataError", "bad", "raised")
    assert "raise DataError" in sent.trace
    assert sent.original.hint == "h"


def test_tail_shows_the_newest_process_only(tmp_path):
    log = tmp_path / "x.log"
    log.write_text(f"{FIRST_LINE} a\nold\n{FIRST_LINE} b\n" + "".join(f"l{i}\n" for i in range(9)))
    assert tail(log, lines=3) == "l6\nl7\nl8"
    assert tail(log).splitlines()[0] == f"{FIRST_LINE} b"
    assert tail(tmp_path / "missing") == ""
    assert tail(None) == ""


def test_a_process_without_a_record_was_killed_by_signal_9(tmp_path):
    prefix = tmp_path / "r"
    assert read_exit(prefix, "") == (signal.SIGKILL, None)
    (tmp_path / "r.15").touch()
    assert read_exit(prefix, "") == (signal.SIGKILL, None)
    (tmp_path / "r.status").write_text("5")
    assert read_exit(prefix, "") == (0, 5)
    (tmp_path / "r.15").write_text("stack")
    assert read_exit(prefix, "") == (signal.SIGTERM, None)
    assert read_exit(prefix, "x\nFatal Python error: Segmentation fault\n")[0] == signal.SIGSEGV
