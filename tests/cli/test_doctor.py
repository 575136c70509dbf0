"""``bestiary doctor``: what is wrong, and how to mend it."""

import json
from collections import namedtuple

import pytest

from bestiary.cli import doctor


def found(subject, findings):
    return [finding for finding in findings if finding.subject == subject]


def test_it_reports_each_subject_and_what_a_broken_plugin_says(bestiary):
    done = bestiary("doctor", "--json")
    findings = json.loads(done.out)
    subjects = {finding["subject"] for finding in findings}
    assert {"python", "torch", "ray", "cpu", "memory", "disk", "plugin"} <= subjects
    broken = [f for f in findings if "on purpose" in f["text"]]
    assert [f["level"] for f in broken] == ["wrong"]
    assert broken[0]["mend"] == "mend or uninstall zoo-broken, or --block-plugin broken"
    assert done.status == 1


def test_it_ends_with_0_where_nothing_is_wrong(monkeypatch, capsys):
    monkeypatch.setattr(doctor, "examine", lambda block: [doctor.Finding("ok", "python", "3.11")])
    from bestiary.cli.main import main

    assert main(["doctor"]) == 0
    assert capsys.readouterr().out == "ok    python        3.11\n"


def test_a_missing_and_an_old_distribution_are_named_with_the_remedy(monkeypatch):
    assert doctor.installed("no-such-thing", "1", "bestiary[torch]").mend == (
        "pip install 'bestiary[torch]'"
    )
    monkeypatch.setattr(doctor, "version", lambda name: "2.5.1")
    assert doctor.installed("torch", "2.10", "x").text == "2.5.1 is too old, 2.10 is wanted"
    assert doctor.installed("torch", "2.5", "x") is None


Usage = namedtuple("Usage", "total used free")


@pytest.mark.parametrize(
    ("free", "level"), [(64 << 20, "wrong"), (2 << 30, "ok")]
)  # a container's default is 64 MiB
def test_little_shared_memory_is_wrong(monkeypatch, free, level):
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _: Usage(4 << 30, 0, free))
    [finding] = doctor._shared_memory()
    assert finding.level == level
    assert ("--shm-size" in finding.mend) is (level == "wrong")


@pytest.mark.parametrize(
    ("free", "level"), [(1 << 30, "wrong"), (10 << 30, "note"), (300 << 30, "ok")]
)
def test_a_full_disk_is_wrong_or_noted(monkeypatch, free, level):
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _: Usage(1 << 40, 0, free))
    assert {finding.level for finding in doctor._disk()} == {level}


def test_a_look_that_fails_is_a_finding_and_the_others_go_on(monkeypatch):
    def fails(*_):
        raise OSError("no such device")

    monkeypatch.setattr(doctor.shutil, "disk_usage", fails)
    findings = list(doctor.examine([]))
    assert found("disk", findings)[0].text == "cannot be examined: OSError: no such device"
    assert found("plugin", findings)
