"""The manifest says what made a run, and nothing that must stay secret."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import bestiary
from bestiary.config.manifest import git_state, gone_named, manifest, write_manifest
from bestiary.config.run_dir import Claim
from bestiary.config.secrets import hide, hide_word, is_secret
from bestiary.errors import ConfigError


def test_it_says_what_made_the_run(run, plugins, tmp_path):
    plan = run("seed=4", "tracker=[wire]")
    found = manifest(plan, plugins, Claim(tmp_path, 2, Path("/old"), ("steps",)), ["bestiary", "x"])
    assert json.loads(json.dumps(found)) == found
    assert found["bestiary"] == bestiary.__version__
    assert found["seed"] == 4
    assert found["attempt"] == 2
    assert found["resumed_from"] == "/old"
    assert found["changed"] == ["steps"]
    assert found["choices"]["algorithm"] == "grpo"
    assert found["choices"]["tracker"] == ["wire"]
    assert found["owners"]["algorithm"] == "algos (zoo-algos 2.0)"
    assert found["owners"]["tracker.wire"] == "basics (zoo-basics 1.0)"
    assert found["config"] == plan.to_json()
    assert found["plugins"] == plugins.fingerprint()
    assert found["python"] == ".".join(map(str, sys.version_info[:3]))
    assert found["packages"]["hydra-core"].startswith("1.3")
    assert found["argv"] == ["bestiary", "x"]


def test_it_holds_no_secret_and_no_environment(run, plugins, tmp_path, monkeypatch):
    monkeypatch.setenv("SOME_TOKEN", "from-the-environment")
    words = ["tracker=[board]", "tracker.board.api_key=swordfish", "tracker.board.project=p"]
    argv = ["bestiary", "train", *words, "+name=https://me:swordfish@host/x"]
    found = manifest(run(*words), plugins, Claim(tmp_path), argv)
    write_manifest(tmp_path, found)
    text = (tmp_path / "manifest.json").read_text()
    assert "swordfish" not in text
    assert "from-the-environment" not in text
    assert "tracker.board.api_key=***" in text
    assert '"project": "p"' in text


@pytest.mark.parametrize(
    ("key", "secret"),
    [
        ("api_key", True),
        ("wandb-token", True),
        ("PASSWORD", True),
        ("tracker.board.secret", True),
        ("hf_tokens", True),
        ("max_tokens", True),
        ("monkey", False),
        ("keyboard", False),
        ("tokenizer", False),
    ],
)
def test_keys_of_secrets_are_recognised(key, secret):
    assert is_secret(key) is secret


def test_numbers_are_no_secrets_whatever_their_key():
    assert hide({"max_tokens": 16, "token": "abc", "api_key": "", "deep": [{"key": "x"}]}) == {
        "max_tokens": 16,
        "token": "***",
        "api_key": "",
        "deep": [{"key": "***"}],
    }
    assert hide_word("algorithm.max_tokens=16") == "algorithm.max_tokens=16"
    assert hide_word("tracker.x.token=abc") == "tracker.x.token=***"
    assert hide_word("+tracker.x.token=abc") == "+tracker.x.token=***"
    assert hide("s3://user:pw@host/a") == "s3://***@host/a"


def test_git_state_is_commit_and_whether_files_differ(tmp_path):
    assert git_state(tmp_path) is None

    def git(*words):
        identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", *identity, *words], cwd=tmp_path, check=True, capture_output=True)

    git("init")
    (tmp_path / "f").write_text("1")
    git("add", "f")
    git("commit", "-m", "x")
    clean = git_state(tmp_path)
    assert len(clean["commit"]) == 40
    assert clean["dirty"] is False
    (tmp_path / "f").write_text("2")
    assert git_state(tmp_path) == {"commit": clean["commit"], "dirty": True}


def test_an_error_about_an_old_run_names_the_distributions_that_are_gone(tmp_path, plugins):
    made_with = plugins.fingerprint()
    gone = {"distribution": "my-zoo", "version": "0.3"}
    record = {"plugins": {**made_with, "plugins": [*made_with["plugins"], gone]}}
    (tmp_path / "manifest.json").write_text(json.dumps(record))
    with pytest.raises(ConfigError) as caught, gone_named(tmp_path, plugins):
        raise ConfigError("no algorithm 'mine'", hint="see `bestiary plugins`")
    assert caught.value.hint == "the run was made with my-zoo 0.3; install or unblock it"
    with pytest.raises(ConfigError) as caught, gone_named(tmp_path / "elsewhere", plugins):
        raise ConfigError("no algorithm 'mine'", hint="see `bestiary plugins`")
    assert caught.value.hint == "see `bestiary plugins`"
