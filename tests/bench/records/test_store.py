"""Records in files: strict, whole or not at all, the newest outcome stands; what a killed writer left is cleared."""

import dataclasses
import errno
import gzip
import hashlib
import itertools
import json
import lzma
import math
import os

import pytest
from odd_records import with_value
from synthetic_records import config, record

from bench.records import disk, store
from bench.records.disk import write_atomically
from bench.records.store import READABLE, SUFFIXES, Store, encode, latest

FINE = dataclasses.replace(
    record(config("flash", {"name": "latency"}, 64), {"samples": [1.5, 2.5]}), record_id="0" * 32, cell_id="c" * 64
)
LONG = {"curve": {"loss": [math.sqrt(k) for k in range(READABLE + 1)], "step": 10}, "norms": [[1.0] * 12] * 8, "n": [7]}
SUMMARY = {"axis": "seq_len", "replicates": None, "not_conditions": [], "headline": [], "metrics": []}


def changed(**fields):
    return dataclasses.replace(FINE, **fields)


@pytest.mark.parametrize("measurements", [{"samples": [1.5, 2.5]}, LONG, {}])
def test_round_trip(tmp_path, measurements):
    source = changed(measurements=measurements, overrides=("a=1", "b"))
    Store(tmp_path).write(source)
    assert Store(tmp_path).load() == [source]


def test_a_record_reads_on_a_screen_and_long_lists_have_a_file_of_their_own(tmp_path):
    path = Store(tmp_path).write(changed(measurements=LONG))
    text = path.read_text()
    assert len(text.splitlines()) < 40 and max(map(len, text.splitlines())) <= 120
    assert json.loads(text)["measurements"]["curve"] == {"loss": f"{READABLE + 1} numbers, in samples/", "step": 10}
    samples = json.loads(lzma.decompress((tmp_path / "samples" / f"{path.name}.xz").read_bytes()))
    assert samples == {"curve": {"loss": LONG["curve"]["loss"]}, "norms": LONG["norms"]}
    at_the_limit = changed(record_id="1" * 32, measurements={"samples": [0.0] * READABLE})
    assert not Store(tmp_path).samples_file(Store(tmp_path).write(at_the_limit).name).exists()


def test_lists_with_text_are_read_where_they_are(tmp_path):
    """However long: a person reads them, and they are part of what a record must have."""
    texts = [f"flash {n} ms" for n in range(2 * READABLE)]
    evaluations = [{"step": n, "loss": 1.5} for n in range(READABLE)]
    summary = {**SUMMARY, "headline": texts}
    source = changed(measurements={"validation": evaluations}, summary=summary)
    store = Store(tmp_path)
    read = json.loads(store.write(source).read_text())
    assert read["summary"]["headline"] == texts and store.load() == [source]
    assert read["measurements"] == {"validation": f"{2 * READABLE} numbers, in samples/"}


def test_long_lists_with_nan_have_the_other_file(tmp_path):
    """Recall has a loss at the answers alone: half of a summary's losses by position are NaN."""
    source = changed(measurements=LONG, summary={**SUMMARY, "raw": {"4": ["nan", 1.5, "inf", "-inf"] * READABLE}})
    store = Store(tmp_path)
    written = json.loads(store.write(source).read_text())["summary"]["raw"]
    assert written == "in samples/" and store.load() == [source]


def test_what_programs_read_of_a_summary_is_beside_the_samples_that_it_comes_from(tmp_path):
    metrics = [{"metric": "loss", "value": 1.5, "unit": "nats"}]
    summary = {**SUMMARY, "metrics": metrics, "raw": {"0": [1.5]}}
    moved = {"metrics": "in samples/", "raw": "in samples/"}
    for number, (measured, written) in enumerate([(LONG, moved), ({"loss": 1.5}, {})]):
        source = changed(measurements=measured, summary=summary)
        store = Store(tmp_path / str(number))
        assert json.loads(store.write(source).read_text())["summary"] == summary | written
        assert store.load() == [source]


def test_a_summary_with_short_lists_in_its_record_is_read(tmp_path):
    """So were they written before: a note in place of each long list alone."""
    source = changed(measurements=LONG, summary={**SUMMARY, "raw": {"0": LONG["norms"], "1": [1.5]}})
    store = Store(tmp_path)
    path = store.write(source)
    samples = store.samples_file(path.name)
    long = json.loads(lzma.decompress(samples.read_bytes()))
    long["summary."]["raw"].pop("1")
    samples.write_bytes(lzma.compress(json.dumps(long).encode()))
    record = json.loads(path.read_text())
    record["summary"]["raw"] = {"0": "numbers, in samples/", "1": [1.5]}
    record["samples_sha256"] = hashlib.sha256(json.dumps(long).encode()).hexdigest()
    path.write_text(json.dumps(record))
    assert store.load() == [source]


def test_a_list_that_the_summary_repeats_is_written_once(tmp_path):
    other = [*LONG["norms"], 1.0]
    source = changed(measurements=LONG, summary={**SUMMARY, "raw": {"3": LONG["curve"]["loss"], "4": other}})
    store = Store(tmp_path)
    path = store.write(source)
    samples = json.loads(lzma.decompress((tmp_path / "samples" / f"{path.name}.xz").read_bytes()))
    assert [*samples.values()][-1] == {"raw": {"3": "curve/loss", "4": other}, "metrics": []}
    assert store.load() == [source]


@pytest.mark.parametrize(("suffix", "write"), [("", bytes), (".gz", gzip.compress)])
def test_samples_that_an_older_version_wrote_otherwise_are_read_and_copied(tmp_path, suffix, write):
    source, old, new = changed(measurements=LONG), Store(tmp_path / "old"), Store(tmp_path / "new")
    compressed = old.samples_file(old.write(source).name)
    compressed.with_suffix(suffix).write_bytes(write(lzma.decompress(compressed.read_bytes())))
    compressed.unlink()
    assert old.load() == [source]
    new.copy(old, source.file_name)
    assert new.load() == [source]
    old.write(source)
    assert new.samples_file(source.file_name).read_bytes() == compressed.read_bytes()
    old.clear_leftovers()
    assert old.load() == [source]


def test_a_writer_that_is_killed_leaves_no_record_without_its_samples(tmp_path, monkeypatch):
    real, written = store.write_atomically, []

    def killed_before_the_second(path, data):
        if written:
            raise KeyboardInterrupt
        written.append(path.parent.name)
        real(path, data)

    monkeypatch.setattr(store, "write_atomically", killed_before_the_second)
    with pytest.raises(KeyboardInterrupt):
        Store(tmp_path).write(changed(measurements=LONG))
    assert written == ["samples"] and Store(tmp_path).load() == []


def test_non_finite_numbers_are_not_written():
    for value, count in itertools.product((math.nan, math.inf, -math.inf), (1, READABLE + 1)):
        with pytest.raises(ValueError):
            encode(changed(measurements={"samples": [value] * count}))


def test_whole_numbers_and_fields_that_are_left_out_are_fine(tmp_path):
    path = Store(tmp_path).write(FINE)
    for name, value in (("duration_s", 1), ("stderr_tail", ...), ("reason", None)):
        with_value(name, value)(path)
    assert Store(tmp_path).load() == [FINE]


def test_the_newest_outcome_stands_and_a_failed_attempt_replaces_none():
    ok, later = changed(), changed(record_id="1", ended="2026-01-02T00:00:00+00:00")
    crash = changed(record_id="2", status="crash", measurements={}, ended="2026-01-03T00:00:00+00:00")
    assert latest([ok, later])["c" * 64] is later
    assert latest([ok, crash])["c" * 64] is ok
    assert latest([crash, ok])["c" * 64] is ok
    assert latest([crash])["c" * 64] is crash


def test_of_two_machines_records_the_newest_counts_whichever_attempt_it_was_there(tmp_path):
    store = Store(tmp_path)
    store.write(changed(record_id="1" * 16, attempt=1, ended="2026-03-10T00:00:00+00:00"))
    store.write(changed(record_id="2" * 16, attempt=2, ended="2026-01-10T00:00:00+00:00"))
    assert latest(store.load())["c" * 64].record_id == "1" * 16


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


def test_a_file_that_is_cleared_before_it_is_locked_is_made_again(tmp_path, monkeypatch):
    """A starting sweep takes a file without a lock for a leftover."""
    asked = []

    def cleared_first(descriptor, *, exclusively):
        if not asked:
            (only,) = tmp_path.iterdir()
            only.unlink()
        asked.append(exclusively)

    monkeypatch.setattr(disk, "lock", cleared_first)
    write_atomically(tmp_path / "file", b"whole")
    assert asked == [True, True] and (tmp_path / "file").read_bytes() == b"whole"


def a_store_with_leftovers(folder):
    results = Store(folder)
    whole = results.write(FINE).name
    results.samples_dir.mkdir(exist_ok=True)
    for path in (results.records_dir / f".{whole}.1.tmp", results.samples_dir / f".{whole}.xz.2f.tmp"):
        path.write_text("{")
    for suffix in SUFFIXES:
        (results.samples_dir / f"{'c' * 16}-{'d' * 16}.json{suffix}").write_text("{}")
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
    assert len(names(results.records_dir)) == 2 and len(names(results.samples_dir)) == 5
    for writer in writers:
        os.close(writer)
    results.clear_leftovers()
    assert len(names(results.records_dir)) == 1
