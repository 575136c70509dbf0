"""One test for each hook, named after it; two tests hold that, and the reference page, true."""

import re
from pathlib import Path

import pytest

from bestiary import hookimpl
from bestiary.errors import Owner, PluginError
from bestiary.plugins import hookspecs
from bestiary.plugins.checking import known_hooks
from bestiary.plugins.events import (
    OBSERVERS,
    Checkpoint,
    PlacementRequest,
    Rollout,
    RunEnd,
    RunStart,
    Step,
    WorkerFailed,
)
from bestiary.protocols import Role, RunInfo

PAGE = Path(__file__).parents[2] / "docs" / "plugins.md"
ME = Owner("test", "test", "0")


def hooks(site):
    return known_hooks(site.load().pm)


def heard(site, hook, event):
    """Tell an event to an observer that implements one hook, and return what it got."""
    got = []

    class Observer:
        pass

    def listen(event):
        got.append(event)

    setattr(Observer, hook, staticmethod(hookimpl(listen)))
    plugins = site.load()
    plugins.add(Observer(), ME)
    plugins.observe(event)
    return got


def test_every_hook_has_a_test(site):
    tests = {name for name in globals() if name.startswith("test_")}
    for hook in hooks(site):
        assert f"test_{hook.removeprefix('bestiary_')}" in tests


def test_every_hook_is_documented_with_its_exact_arguments(site):
    headings = re.findall(r"^### `(bestiary_\w+)\(([^)]*)\)`$", PAGE.read_text(), re.MULTILINE)
    documented = {name: tuple(re.findall(r"\w+", arguments)) for name, arguments in headings}
    assert documented == hooks(site)


def test_every_hook_says_since_when_it_is_there(site):
    for hook in hooks(site):
        assert re.search(r"^ *Since: \d+\.\d+$", getattr(hookspecs, hook).__doc__, re.MULTILINE)


def test_every_event_is_documented(site):
    page = PAGE.read_text()
    for event, hook in OBSERVERS.items():
        section = page.split(f"### `{hook}(event)`")[1].split("###")[0]
        assert f"`{event.__name__}(" in section
        fields = re.search(rf"`{event.__name__}\(([^)]*)\)`", section)[1]
        assert fields.split(", ") == list(event.__dataclass_fields__)


def test_register(site):
    site.offer("zoo-one", "zoo_one", "schedule", "one")
    assert site.load().registry.get("schedule", "one").target == "zoo_one.code:Thing"


def test_config_packages(site):
    source = """
    from bestiary import hookimpl

    @hookimpl
    def bestiary_config_packages():
        return ["zoo_one.conf"]
    """
    site.install("zoo-one", "zoo_one", source)
    ((package, owner),) = site.load().config_packages()
    assert (package, owner.distribution) == ("zoo_one.conf", "zoo-one")


def test_config_packages_that_are_no_list_of_names_are_refused(site):
    source = (
        "from bestiary import hookimpl\n@hookimpl\ndef bestiary_config_packages():\n    return 'a'"
    )
    site.install("zoo-one", "zoo_one", source)
    record = site.record("zoo-one")
    assert record.status == "failed"
    assert "returned 'a', not a list of names" in record.reason


def test_plan_placement(site):
    request = PlacementRequest((Role("actor"),), ("cpu:0",))

    class First:
        @hookimpl
        def bestiary_plan_placement(self, request):
            return {"actor": [request.devices[0]]}

    class Passing:
        @hookimpl
        def bestiary_plan_placement(self):
            return None

    plugins = site.load()
    assert plugins.plan_placement(request) is None
    plugins.add(First(), ME)
    plugins.add(Passing(), Owner("passing", "test", "0"))
    assert plugins.plan_placement(request) == {"actor": ["cpu:0"]}


def test_plan_placement_that_raises_is_attributed(site):
    class Broken:
        @hookimpl
        def bestiary_plan_placement(self, request):
            raise ValueError("no idea")

    plugins = site.load()
    plugins.add(Broken(), ME)
    with pytest.raises(PluginError, match="hook bestiary_plan_placement failed") as caught:
        plugins.plan_placement(PlacementRequest((), ()))
    assert caught.value.owner == ME


def test_on_run_start(site, tmp_path):
    event = RunStart(RunInfo(tmp_path, "run", {}, {}))
    assert heard(site, "bestiary_on_run_start", event) == [event]


def test_on_rollout(site):
    event = Rollout(step=1, samples=8, tokens=90, seconds=0.5, version=3)
    assert heard(site, "bestiary_on_rollout", event) == [event]


def test_on_step(site):
    event = Step(step=1, version=4, metrics={"reward/mean": 0.5}, attempt=2)
    assert heard(site, "bestiary_on_step", event) == [event]


def test_on_checkpoint(site, tmp_path):
    event = Checkpoint(step=5, path=tmp_path)
    assert heard(site, "bestiary_on_checkpoint", event) == [event]


def test_on_worker_failure(site):
    event = WorkerFailed(step=2, group="actor", rank=1, host="n3", cause="killed")
    assert heard(site, "bestiary_on_worker_failure", event) == [event]


def test_on_run_end(site):
    event = RunEnd(status="failed", step=2, error="killed")
    assert heard(site, "bestiary_on_run_end", event) == [event]


def test_events_cannot_be_changed(site):
    for event in (RunEnd("finished", 1), Step(1, 1, {}), Rollout(1, 1, 1, 0.0, 0)):
        with pytest.raises(AttributeError):
            event.step = 7
