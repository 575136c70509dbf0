"""Scorers that users name are looked for before anything starts."""

import pytest

from bestiary.config.compose import compose_run
from bestiary.errors import ConfigError

WORDS = ("algorithm=grpo", "task=addition", "model=tiny", "reward=custom")


def test_a_reward_file_that_is_not_there_is_refused_with_the_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"reward: the file 'mine.py' is not there") as caught:
        compose_run([*WORDS, "reward.path=mine.py:score"])
    assert str(tmp_path) in caught.value.hint
    (tmp_path / "mine.py").write_text("def score(samples): return [1.0] * len(samples)\n")
    assert compose_run([*WORDS, "reward.path=mine.py:score"]).choices["reward"] == "custom"


def test_a_custom_reward_without_a_function_says_what_to_add():
    with pytest.raises(ConfigError, match="without a function") as caught:
        compose_run(list(WORDS))
    assert caught.value.hint.startswith("add reward.path=file.py:function")
