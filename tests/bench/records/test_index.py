"""The index of the records: derived from them, never believed over one."""

import json
import os

import pytest
from synthetic_records import config, record

from bench.records import index, own
from bench.records.store import Store, latest

COUNT = index.WORTH_WRITING


def written(folder, count=COUNT):
    own.claim(folder, own.RESULTS, "results_dir")
    store = Store(folder)
    for seed in range(count):
        store.write(record(config("flash", {"name": "latency"}, 64, seed=seed), status="oom"))
    return store


def facts(attempts):
    return [tuple(getattr(each, name) for name in index.FIELDS) for each in attempts]


@pytest.fixture
def decoded(monkeypatch):
    """The names of the files that are read."""
    names = []
    real = Store.readable

    def readable(self, wanted):
        names.extend(wanted := list(wanted))
        return real(self, wanted)

    monkeypatch.setattr(Store, "readable", readable)
    return names


def test_it_says_what_the_records_say_and_reads_each_once(tmp_path, decoded):
    store = written(tmp_path)
    assert facts(index.entries(store)) == facts(store.load())
    assert latest(index.entries(store)).keys() == latest(store.load()).keys()
    decoded.clear()
    assert len(index.entries(store)) == COUNT and decoded == []
    assert index.read(store, index.entries(store)) == store.load()


@pytest.mark.parametrize("change", ["changed", "removed", "new", "no record any more"])
def test_a_record_counts_more_than_its_entry(change, tmp_path, capsys):
    store = written(tmp_path)
    first = index.entries(store)[0]
    path = store.records_dir / first.file_name
    if change == "changed":
        path.write_text(path.read_text().replace('"oom"', '"timeout"'))
    elif change == "removed":
        path.unlink()
    elif change == "new":
        store.write(record(config("flash", {"name": "latency"}, 128), status="crash"))
    else:
        path.write_text("{}")
    assert facts(index.entries(store)) == facts(store.load())
    assert {"changed": COUNT, "new": COUNT + 1}.get(change, COUNT - 1) == len(index.entries(store))


def test_samples_that_are_gone_are_missed(tmp_path, capsys):
    store = written(tmp_path, COUNT - 1)
    with_samples = record(config("flash", {"name": "latency"}, 64, seed=99), {"samples": [1.0] * 1000})
    store.write(with_samples)
    assert len(index.entries(store)) == COUNT
    (store.samples_dir / f"{with_samples.file_name}.gz").unlink()
    assert with_samples.record_id not in {entry.record_id for entry in index.entries(store)}


@pytest.mark.parametrize(
    "torn", ["", "{", "[]", '{"schema": 1}', "null", "[" * 100_000, '{"schema": 1, "records": [1]}']
)
def test_anything_else_in_its_place_is_made_anew(torn, tmp_path):
    store = written(tmp_path)
    right = facts(index.entries(store))
    file = tmp_path / index.FILE
    good = file.read_text()
    file.write_text(torn)
    assert facts(index.entries(store)) == right and json.loads(file.read_text()) == json.loads(good)
    other = json.loads(good)
    other["records"][0][5] = 7
    file.write_text(json.dumps(other))
    assert facts(index.entries(store)) == right


def test_a_folder_where_it_cannot_be_written_is_read_all_the_same(tmp_path):
    store = written(tmp_path)
    (tmp_path / index.FILE).mkdir()
    assert len(index.entries(store)) == COUNT


def test_a_record_damaged_behind_its_back_is_an_error_that_names_it(tmp_path, capsys):
    store = written(tmp_path)
    entry = index.entries(store)[0]
    path = store.records_dir / entry.file_name
    status = path.stat()
    path.write_bytes(b" " * status.st_size)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    with pytest.raises(OSError, match="has been damaged") as error:
        index.read(store, index.entries(store))
    assert entry.file_name in str(error.value.filename)
    assert len(index.entries(store)) == COUNT - 1
