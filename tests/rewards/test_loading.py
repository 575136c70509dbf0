import pytest

from bestiary.errors import PluginError, RewardError
from bestiary.plugins.manager import load_plugins
from bestiary.protocols import ComponentRef, Sample
from bestiary.rewards.custom import CustomReward
from bestiary.rewards.loading import load_reward, reward_ref
from bestiary.rewards.options import CustomOptions

SAMPLES = [Sample("u", "p", "46", "46", 3, False)]
FILE = """
from dataclasses import dataclass

@dataclass
class Twice:
    factor: float = 2.0
    def __call__(self, samples):
        return [self.factor for s in samples]

def length(samples, scale=1.0):
    return [len(s.response) * scale for s in samples]

CONSTANT = 3
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "my_rewards.py"
    path.write_text(FILE)
    return path


@pytest.fixture(scope="module")
def plugins():
    return load_plugins()


def custom(path, **kwargs):
    return CustomReward(CustomOptions(path=str(path), kwargs=kwargs))


def test_a_registered_reward_is_built_with_its_options(plugins):
    loaded = load_reward(ComponentRef("reward", "last_number", {"tolerance": 1.0}), plugins)
    assert loaded.name == "last_number"
    assert loaded.owner.distribution == "bestiary"
    assert loaded.function([Sample("u", "p", "45", "46", 3, False)]) == [1.0]


def test_what_a_user_writes_becomes_a_reference():
    assert reward_ref("exact_match") == ComponentRef("reward", "exact_match")
    assert reward_ref("a.b:f") == ComponentRef("reward", "custom", {"path": "a.b:f"})


def test_a_file_is_a_reward_with_a_content_hash(plugins, file):
    ref = ComponentRef("reward", "custom", {"path": f"{file}:length", "kwargs": {"scale": 0.5}})
    loaded = load_reward(ref, plugins)
    assert loaded.function(SAMPLES) == [1.0]
    assert loaded.name == f"{file}:length"
    assert len(loaded.digest) == 16


def test_an_edited_file_is_loaded_anew_and_has_another_hash(file):
    first = custom(f"{file}:length")
    file.write_text("def length(samples):\n    return [7.0 for s in samples]\n")
    second = custom(f"{file}:length")
    assert first(SAMPLES) == [2.0]
    assert second(SAMPLES) == [7.0]
    assert first.digest != second.digest


def test_a_class_is_made_with_the_arguments(file):
    assert custom(f"{file}:Twice", factor=5.0)(SAMPLES) == [5.0]


def test_a_dotted_path_is_a_reward(file, monkeypatch):
    monkeypatch.syspath_prepend(file.parent)
    assert custom("my_rewards:length")(SAMPLES) == [2.0]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("nothing", "write package.module:function"),
        ("no_such_module_x:f", "importing no_such_module_x failed: ModuleNotFoundError"),
        ("/no/file.py:f", "is not there"),
        ("{file}:missing", "no 'missing' in it[\\s\\S]*Twice, length"),
        ("{file}:CONSTANT", "is a int, not a function"),
    ],
)
def test_a_wrong_path_is_an_error_that_helps(file, path, message):
    with pytest.raises(RewardError, match=message):
        custom(path.replace("{file}", str(file)))


def test_a_file_that_fails_on_import_says_why_and_is_not_kept(file):
    file.write_text("raise ValueError('half written')")
    for _ in range(2):
        with pytest.raises(RewardError, match="ValueError: half written"):
            custom(f"{file}:length")


def test_an_unknown_reward_or_option_is_refused(plugins):
    with pytest.raises(PluginError, match="exact_match"):
        load_reward(ComponentRef("reward", "exact_matc"), plugins)
    with pytest.raises(RewardError, match="does not take these options"):
        load_reward(ComponentRef("reward", "exact_match", {"fold": True}), plugins)
