"""The command itself: help, versions, and one clear message for each mistake."""

import json

import pytest

import bestiary as package
from bestiary.cli.main import main, parse
from bestiary.errors import ConfigError


def test_the_version_is_that_of_the_package(bestiary):
    assert bestiary("--version").out == f"bestiary {package.__version__}\n"


@pytest.mark.parametrize(
    "command", [(), ("train",), ("plugins",), ("eval",), ("demo",), ("doctor",)]
)
def test_help_is_there_with_status_0(capsys, command):
    with pytest.raises(SystemExit) as caught:
        main([*command, "--help"])
    assert caught.value.code == 0
    assert "usage: bestiary" in capsys.readouterr().out


def test_without_a_command_the_help_is_shown(capsys):
    assert main([]) == 0
    assert "bestiary train algorithm=grpo" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["trian"], "argument COMMAND: invalid choice: 'trian'"),
        (["train", "--confg-dir", "x"], "'--confg-dir'; did you mean '--config-dir'?"),
        (["train", "--cfg", "jb"], "argument --cfg: invalid choice: 'jb' (choose from 'job')"),
        (["plugins", "seed=1"], "bestiary plugins: unknown argument 'seed=1'"),
        (["doctor", "--jsn"], "unknown argument '--jsn'; did you mean '--json'?"),
        (["eval"], "the following arguments are required: RUN_OR_CHECKPOINT"),
        (["--versoin"], "unknown argument '--versoin'; did you mean '--version'?"),
    ],
)  # fmt: skip
def test_a_wrong_command_line_is_one_error_with_status_2(capsys, words, message):
    assert main(words) == 2
    found = capsys.readouterr()
    assert found.out == ""
    assert found.err.startswith("error: ")
    assert message in found.err
    assert "Traceback" not in found.err


def test_options_and_overrides_may_stand_in_any_order():
    arguments = parse(["train", "seed=0", "--config-dir", "c", "+experiment=x", "-m", "a.b=1,2"])
    assert arguments.overrides == ["seed=0", "+experiment=x", "a.b=1,2"]
    assert (arguments.config_dir, arguments.multirun) == ("c", True)
    arguments = parse(["eval", "runs/x", "eval.samples=8", "--json"])
    assert (arguments.source, arguments.overrides, arguments.json) == (
        "runs/x", ["eval.samples=8"], True,
    )  # fmt: skip
    assert parse(["demo", "seed=1"]).overrides == ["seed=1"]


def test_a_short_form_of_an_option_is_not_guessed():
    with pytest.raises(ConfigError, match="--conf"):
        parse(["train", "--conf", "x"])


def test_a_mistake_ends_with_status_2_before_anything_is_made(bestiary, tmp_path):
    done = bestiary("train", "algorithm=zoo_grp", "task=zoo_addition", "model=tiny")
    assert done.status == 2
    assert done.out == ""
    assert done.err.startswith("error: no algorithm 'zoo_grp'; did you mean 'zoo_grpo'")
    assert "zoo_remax (zoo-algos 2.0)" in done.err
    assert "broken on purpose" in done.err  # the plugin that might have had it
    assert "Traceback" not in done.err
    assert list(tmp_path.iterdir()) == []


def test_traceback_shows_where_an_error_was_raised(bestiary):
    done = bestiary("train", "sed=1", "--traceback")
    assert done.status == 2
    assert "Traceback (most recent call last)" in done.err
    assert "error: 'sed=1': there is no setting 'sed'" in done.err


def test_an_unexpected_error_is_one_line_as_well(capsys, monkeypatch):
    def broken(arguments):
        raise RuntimeError("oops")

    monkeypatch.setattr("bestiary.cli.plugins.plugins", broken)
    assert main(["plugins"]) == 1
    found = capsys.readouterr().err
    assert found.startswith("error: unexpected RuntimeError: oops\n  -> ")
    assert main(["plugins", "--traceback"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_ctrl_c_ends_with_status_130(capsys, monkeypatch):
    def interrupted(arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr("bestiary.cli.plugins.plugins", interrupted)
    assert main(["plugins"]) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_plugins_lists_what_is_installed_also_what_is_broken(bestiary):
    rows = {row["name"]: row for row in json.loads(bestiary("plugins", "--json").out)}
    assert rows["algos"]["status"] == "active"
    assert rows["broken"]["status"] == "failed"
    assert "broken on purpose" in rows["broken"]["reason"]
    blocked = json.loads(bestiary("plugins", "--json", "--block-plugin", "algos").out)
    assert {row["name"]: row["status"] for row in blocked}["algos"] == "blocked"
    table = bestiary("plugins")
    assert table.status == 0
    assert "zoo-algos" in table.out


def test_eval_of_nothing_is_refused(capsys, tmp_path):
    assert main(["eval", str(tmp_path / "nowhere"), "eval.samples=8"]) == 2
    assert "nowhere is not a folder\n  -> give a run folder" in capsys.readouterr().err
