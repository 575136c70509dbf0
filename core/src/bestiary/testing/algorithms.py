"""The suite of algorithms: two real steps with a tiny model, in this process."""

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from bestiary.protocols import Algorithm, AlgorithmOptions
from bestiary.testing.suite import Suite

if TYPE_CHECKING:
    from bestiary.runtime.session import Session

_SCORER = '''
from bestiary import Score


def letters(samples):
    """Depends on the whole response, so that groups differ."""
    found = []
    for s in samples:
        x = sum(map(ord, s.response)) % 7 / 6
        found.append(Score(x, parts={"style": x * x, "truth": 1 - x}))
    return found
'''


class AlgorithmSuite(Suite):
    """The contract of an algorithm."""

    kind = "algorithm"
    task: ClassVar[str] = ""
    """Task to train on; by default addition, or preferences for an algorithm of pairs."""
    words: ClassVar[tuple[str, ...]] = ()
    """Further settings, as on the command line."""

    def settings(self, folder: Path) -> list[str]:
        """The words of a small run."""
        options: type[AlgorithmOptions] = self.found().options_class()
        pairs = options.trains_from == "pairs"
        scorer = folder / "scorer.py"
        scorer.write_text(_SCORER)
        paid = any(role.name == "cost" for role in self.made_options().roles())
        groups = ("reward", "cost") if paid else ("reward",)
        chosen = [f"{group}=custom" for group in groups]
        paths = [f"{group}.path={scorer}:letters" for group in groups]
        return [
            f"algorithm={self.component}",
            f"task={self.task or ('preferences' if pairs else 'addition')}",
            *chosen,
            *paths,
            "model=tiny",
            "model.hidden=32",
            "model.layers=2",
            "model.heads=2",
            "model.warm_start=null",
            "placement=inprocess",
            "algorithm.prompts=4",
            "train_engine.lr=1e-2",
            "eval.problems=4",
            "display=none",
            *(f"algorithm.{name}={value}" for name, value in self.options.items()),
            *self.words,
        ]

    @contextmanager
    def session(self, folder: Path) -> Iterator["Session"]:
        """A session of the small run."""
        from bestiary.config.compose import compose_run
        from bestiary.runtime.session import open_session

        plugins = self.plugins()
        plan = compose_run(self.settings(folder), None, plugins)
        with open_session(plan, plugins, folder) as session:
            yield session

    def test_requirements_can_be_read_without_running_it(self) -> None:
        """Options derive from AlgorithmOptions; something is trained; components are named."""
        options = self.made_options()
        assert isinstance(options, AlgorithmOptions)
        assert any(not role.frozen and role.kind != "score" for role in options.roles())
        registry = self.plugins().registry
        for group, name in options.components.items():
            assert name in registry.names("reward" if group == "cost" else group), f"{group}={name}"

    def test_two_steps_train(self, tmp_path: Path) -> None:
        """Both steps report finite numbers, and the weights move."""
        from bestiary.dataflow.options import SyncOptions
        from bestiary.dataflow.schedule import Sync

        with self.session(tmp_path) as session:
            algorithm = session.algorithm
            steps = Sync(SyncOptions()).run(
                algorithm, session.sampler, prompts=algorithm.options.prompts, start=0, stop=2
            )
            for done in steps:
                numbers: dict[str, Any] = {**done.metrics, **session.services.ledger.drain()}
                assert numbers, "learn reports nothing; return self.metrics()"
                wrong = [n for n, x in numbers.items() if not isinstance(x, (int, float))]
                assert not wrong, f"metrics that are no numbers: {wrong}"
                gradient = numbers.get("grad_norm", 0.0)
                assert math.isfinite(gradient), "the gradient is not finite"
                assert not numbers.get("update/skipped"), "an update was skipped"
            version = session.models[session.primary].state()[0]["version"]
            assert version >= 1, "no optimizer step was made"

    def test_collect_writes_nothing_and_takes_any_number_of_groups(self, tmp_path: Path) -> None:
        """Schedules call it for some groups, several at once."""
        with self.session(tmp_path) as session:
            algorithm = session.algorithm
            prompts = session.sampler.draw(3)
            before = _state(algorithm)
            together = algorithm.collect(prompts)
            alone = [algorithm.collect(prompts.take([i])) for i in range(3)]
            assert _state(algorithm) == before, "collect wrote to self"
            assert set(together.names()) == set(alone[0].names())
            keys = [key for batch in alone for key in batch["row_key"].tolist()]
            assert sorted(together["row_key"].tolist()) == sorted(keys)
            assert set(together["group_uid"]) == set(prompts["group_uid"])

    def test_its_state_is_json_and_comes_back(self, tmp_path: Path) -> None:
        """What is saved is enough to go on."""
        algorithm: Algorithm = self.build(0)
        state = json.loads(json.dumps(algorithm.state_dict()))
        other: Algorithm = self.build(0)
        other.load_state_dict(state)
        assert json.loads(json.dumps(other.state_dict())) == state


def _state(algorithm: Algorithm) -> tuple[str, dict[str, int]]:
    own = {n: id(x) for n, x in vars(algorithm).items()}
    return json.dumps(algorithm.state_dict(), sort_keys=True), own
