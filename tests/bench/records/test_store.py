"""Writing records: whole or not at all, and what a killed writer left is cleared, but not from under one who writes."""

import errno
import os

import pytest
from synthetic_records import memory

from bench.records import disk
from bench.records.disk import write_atomically
from bench.records.store import Store


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_write_that_fails_leaves_what_was_there_and_no_unfinished_file(tmp_path, monkeypatch, call):
    write_atomically(tmp_path / "file", b"before")

    def full(*arguments):
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(disk.os, call, full)
    with pytest.raises(OSError, match=r"full: '.*/file'$"):
        write_atomically(tmp_path / "file", b"after")
    assert names(tmp_path) == ["file"] and (tmp_path / "file").read_bytes() == b"before"


def a_store_with_leftovers(folder):
    results = Store(folder)
    whole = results.write(memory("flash", 512)).name
    results.samples_dir.mkdir(exist_ok=True)
    for path in (results.records_dir / f".{whole}.1.tmp", results.samples_dir / f".{whole}.gz.2f.tmp"):
        path.write_text("{")
    (results.samples_dir / f"{'c' * 16}-{'d' * 16}.json.gz").write_text("{}")
    (results.samples_dir / whole).write_text("{}")
    return results, whole


def test_leftovers_are_cleared_and_records_with_their_samples_stay(tmp_path):
    results, whole = a_store_with_leftovers(tmp_path)
    results.clear_leftovers()
    assert names(results.records_dir) == names(results.samples_dir) == [whole]


def test_nothing_is_cleared_while_somebody_writes(tmp_path):
    results, _ = a_store_with_leftovers(tmp_path)
    writers = [os.open(results.records_dir, os.O_RDONLY) for _ in range(2)]
    for writer in writers:  # none waits for another
        disk.lock(writer, exclusively=False)
    Store(tmp_path).clear_leftovers()
    assert len(names(results.records_dir)) == 2 and len(names(results.samples_dir)) == 3
    for writer in writers:
        os.close(writer)
    results.clear_leftovers()
    assert len(names(results.records_dir)) == 1


def test_a_folder_that_is_not_there_has_no_leftovers(tmp_path):
    Store(tmp_path / "new").clear_leftovers()
    assert not os.path.exists(tmp_path / "new")
