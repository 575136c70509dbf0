import logging

import pytest

from bestiary import hookimpl
from bestiary.errors import Owner, PluginError, RewardError
from bestiary.plugins.events import RunEnd, Step

STEP = Step(step=1, version=1, metrics={})


class Broken:
    def __init__(self, error):
        self.error = error

    @hookimpl
    def bestiary_on_step(self, event):
        raise self.error


class Listening:
    def __init__(self):
        self.got = []

    @hookimpl
    def bestiary_on_step(self, event):
        self.got.append(event)


def owner(name):
    return Owner(name, f"bestiary-{name}", "1")


def test_a_failing_observer_is_named(site):
    plugins = site.load()
    plugins.add(Broken(ValueError("disk full")), owner("a"))
    with pytest.raises(
        PluginError, match="hook bestiary_on_step failed: ValueError: disk full"
    ) as e:
        plugins.observe(STEP)
    assert e.value.owner == owner("a")
    assert isinstance(e.value.__cause__, ValueError)


def test_one_failing_observer_keeps_no_other_from_the_event(site):
    plugins = site.load()
    before, after = Listening(), Listening()
    plugins.add(before, owner("a"))
    plugins.add(Broken(ValueError("one")), owner("b"))
    plugins.add(Broken(KeyError("two")), owner("c"))
    plugins.add(after, owner("d"))
    with pytest.raises(PluginError) as caught:
        plugins.observe(STEP)
    assert before.got == after.got == [STEP]
    told = [str(caught.value), *caught.value.__notes__]
    assert ["one" in line or "two" in line for line in told] == [True, True]
    assert any("bestiary-b" in line for line in told)
    assert any("bestiary-c" in line for line in told)


def test_an_error_of_the_projects_own_keeps_its_class(site):
    plugins = site.load()
    plugins.add(Broken(RewardError("no answer")), owner("a"))
    with pytest.raises(RewardError) as caught:
        plugins.observe(STEP)
    assert caught.value.owner == owner("a")


def test_an_interrupt_passes_through(site):
    plugins = site.load()
    plugins.add(Broken(KeyboardInterrupt()), owner("a"))
    with pytest.raises(KeyboardInterrupt):
        plugins.observe(STEP)


def test_an_observer_may_take_fewer_arguments(site):
    calls = []

    class Counting:
        @hookimpl
        def bestiary_on_run_end(self):
            calls.append(1)

    plugins = site.load()
    plugins.add(Counting(), owner("a"))
    plugins.observe(RunEnd("finished", 3))
    assert calls == [1]


def test_an_event_inside_an_event_reports_its_own_failure(site):
    plugins = site.load()
    inner = []

    class Outer:
        @hookimpl
        def bestiary_on_run_end(self, event):
            with pytest.raises(PluginError):
                plugins.observe(STEP)
            inner.append(event)

    plugins.add(Broken(ValueError("x")), owner("a"))
    plugins.add(Outer(), owner("b"))
    plugins.observe(RunEnd("finished", 3))
    assert len(inner) == 1


def test_a_wrapper_surrounds_the_other_observers(site):
    order = []

    class Timing:
        @hookimpl(wrapper=True)
        def bestiary_on_step(self, event):
            order.append("before")
            result = yield
            order.append("after")
            return result

    class Between:
        @hookimpl
        def bestiary_on_step(self, event):
            order.append("between")

    plugins = site.load()
    plugins.add(Timing(), owner("a"))
    plugins.add(Between(), owner("b"))
    plugins.observe(STEP)
    assert order == ["before", "between", "after"]


def test_a_failing_wrapper_is_named(site):
    class Wrapping:
        @hookimpl(wrapper=True)
        def bestiary_on_step(self, event):
            yield
            raise ValueError("late")

    plugins = site.load()
    plugins.add(Wrapping(), owner("a"))
    with pytest.raises(PluginError, match="late") as caught:
        plugins.observe(STEP)
    assert caught.value.owner == owner("a")


def test_order_marks_are_kept(site):
    order = []

    def named(name, **marks):
        class Plugin:
            @hookimpl(**marks)
            def bestiary_on_step(self, event):
                order.append(name)

        return Plugin()

    plugins = site.load()
    plugins.add(named("first", tryfirst=True), owner("a"))
    plugins.add(named("last", trylast=True), owner("b"))
    plugins.add(named("middle"), owner("c"))
    plugins.observe(STEP)
    assert order == ["first", "middle", "last"]


def test_calls_are_traced_when_asked_for(site, monkeypatch, caplog):
    monkeypatch.setenv("BESTIARY_TRACE_PLUGINS", "1")
    monkeypatch.setattr(logging.getLogger("bestiary.plugins"), "level", logging.DEBUG)
    plugins = site.load()
    plugins.add(Listening(), owner("a"))
    plugins.observe(STEP)
    (line,) = [r.getMessage() for r in caplog.records if "bestiary_on_step" in r.getMessage()]
    assert "event=Step(step=1" in line
    assert "by bestiary-a:a" in line
    assert r" ms" in line


def test_a_traced_failure_says_what_was_raised(site, monkeypatch, caplog):
    monkeypatch.setenv("BESTIARY_TRACE_PLUGINS", "1")
    monkeypatch.setattr(logging.getLogger("bestiary.plugins"), "level", logging.DEBUG)
    site.install(
        "zoo-one",
        "zoo_one",
        "from bestiary import hookimpl\n@hookimpl\ndef bestiary_register(registry):\n    1 / 0\n",
    )
    assert site.record("zoo-one").status == "failed"
    assert "raised PluginError" in caplog.text


@pytest.mark.parametrize("value", ["", "0", "no"])
def test_nothing_is_traced_otherwise(site, monkeypatch, caplog, value):
    monkeypatch.setenv("BESTIARY_TRACE_PLUGINS", value)
    caplog.set_level(logging.DEBUG, "bestiary.plugins")
    site.load().observe(STEP)
    assert caplog.records == []
