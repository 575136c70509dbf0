import json
import os
import threading

import pytest

from bestiary.models.cache import MARKER, cache_root, cached, content_hash, key_hash


def test_the_cache_follows_xdg_and_ignores_relative_values(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_root() == tmp_path / "bestiary"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_root() == tmp_path / "home" / ".cache" / "bestiary"


def test_an_entry_is_built_once_and_records_its_key(tmp_path):
    calls = []

    def build(folder):
        calls.append(folder)
        (folder / "value").write_text("7")

    first = cached("thing", {"a": 1, "b": 2}, build, root=tmp_path)
    again = cached("thing", {"b": 2, "a": 1}, build, root=tmp_path)
    other = cached("thing", {"a": 1, "b": 3}, build, root=tmp_path)
    assert first == again != other
    assert len(calls) == 2
    assert (first / "value").read_text() == "7"
    assert json.loads((first / MARKER).read_text()) == {"a": 1, "b": 2}


def test_a_failed_build_leaves_no_entry_and_the_next_one_succeeds(tmp_path):
    def fail(folder):
        (folder / "half").write_text("x")
        raise RuntimeError("disk full")

    with pytest.raises(RuntimeError, match="disk full"):
        cached("thing", {"a": 1}, fail, root=tmp_path)
    assert [p for p in (tmp_path / "thing").iterdir() if p.is_dir()] == []
    entry = cached("thing", {"a": 1}, lambda folder: None, root=tmp_path)
    assert not (entry / "half").exists()


def test_a_folder_without_marker_is_not_an_entry(tmp_path):
    entry = tmp_path / "thing" / f"thing-{key_hash({'a': 1})}"
    entry.mkdir(parents=True)
    (entry / "stale").write_text("x")
    built = cached("thing", {"a": 1}, lambda f: (f / "new").write_text("y"), root=tmp_path)
    assert built == entry
    assert sorted(os.listdir(entry)) == [MARKER, "new"]


def test_concurrent_builders_build_once_and_see_a_complete_entry(tmp_path):
    built, seen = [], []
    start = threading.Barrier(4)

    def build(folder):
        built.append(1)
        for i in range(20):
            (folder / str(i)).write_text("x" * 1000)

    def work():
        start.wait()
        entry = cached("thing", {"a": 1}, build, root=tmp_path)
        seen.append(len(list(entry.iterdir())))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert built == [1]
    assert seen == [21] * 4


def test_content_hash_depends_on_bytes_only(tmp_path):
    (tmp_path / "a").write_bytes(b"abc" * 1_000_000)
    (tmp_path / "b").write_bytes(b"abc" * 1_000_000)
    (tmp_path / "c").write_bytes(b"abc" * 999_999 + b"abd")
    assert content_hash(tmp_path / "a") == content_hash(tmp_path / "b")
    assert content_hash(tmp_path / "a") != content_hash(tmp_path / "c")
