"""Results of several machines in one folder: nothing lost, nothing twice, nothing overwritten, conflicts named."""

import dataclasses
import os
import shutil

import numpy as np
import pytest
from synthetic_records import latency, memory, written

from bench.merge import main, merge
from bench.records import own
from bench.records.store import Store, encode


@pytest.fixture(scope="module")
def records():
    """Ten, of which four have files of samples."""
    rng = np.random.default_rng(0)
    found = [latency("flash", n, rng) for n in (512, 1024, 2048, 4096)]
    assert all(encode(record)[1] for record in found)
    return found + [memory("flash", 512 << number) for number in range(6)]


def contents(folder):
    paths = [path for kind in ("records", "samples") for path in folder.glob(f"{kind}/*")]
    return {path.relative_to(folder): path.read_bytes() for path in paths}


def test_two_machines_and_what_they_share_are_together_once(records, tmp_path, capsys):
    mine, both, theirs = records[0::3], records[1::3], records[2::3]
    again = [dataclasses.replace(record, record_id=record.record_id[::-1]) for record in mine[:2]]
    one = written(tmp_path / "one", [*mine, *both])
    other = written(tmp_path / "other", [*both, *theirs, *again])
    assert main([str(one), str(other), str(tmp_path / "all")]) == 0
    out = capsys.readouterr().out
    assert out == f"{tmp_path}/all: 12 records added, 3 were there\n"
    assert contents(tmp_path / "all") == contents(one) | contents(other)
    assert any(path.parts[0] == "samples" for path in contents(tmp_path / "all"))
    assert main([str(one), str(other), str(tmp_path / "all")]) == 0
    assert capsys.readouterr().out == f"{tmp_path}/all: 0 records added, 15 were there\n"


def test_other_contents_of_the_same_name_are_named_and_left_alone(records, tmp_path, capsys):
    into, source = written(tmp_path / "into", records[:3]), written(tmp_path / "from", records[:6])
    changed = Store(source).records_dir / records[1].file_name
    changed.write_bytes(changed.read_bytes().replace(b"Synthetic CPU 9000", b"Synthetic CPU 9001"))
    before = contents(into)
    assert main([str(source), str(into)]) == 1
    out, err = capsys.readouterr()
    assert err.startswith(f"conflict: {source}: {changed.name}: differs from ") and err.count("\n") == 1
    assert "3 records added, 2 were there, 1 in conflict" in out
    assert before.items() <= contents(into).items() and len(Store(into).load()) == 6


def test_what_is_no_record_is_named_and_costs_no_other(records, tmp_path, capsys):
    source = written(tmp_path / "from", records[:8])
    store = Store(source)
    with_samples = next(iter(sorted(store.samples_dir.iterdir())))
    with_samples.write_bytes(with_samples.read_bytes()[:-9])
    torn = next(path for path in sorted(store.records_dir.iterdir()) if f"{path.name}.xz" != with_samples.name)
    torn.write_bytes(torn.read_bytes()[:100])
    (store.records_dir / "notes.json").write_text("{}")
    os.mkfifo(store.records_dir / "pipe.json")
    (store.records_dir / ".half.json.7.tmp").write_text("")
    (store.records_dir / "README").write_text("")
    assert main([str(source), str(tmp_path / "into")]) == 1
    out, err = capsys.readouterr()
    assert "6 records added, 4 skipped" in out and err.count(": skipped, ") == err.count("\n") == 4
    into = Store(tmp_path / "into")
    assert len(into.load()) == len(into.names()) == 6 and not capsys.readouterr().err


def test_plans_come_along_and_what_is_derived_does_not(records, tmp_path):
    source, into = written(tmp_path / "from", records[:1]), tmp_path / "into"
    plans = ["sweeps/ab/plan.json.gz", "sweeps/cd/plan.json.gz"]
    for name in (*plans, "sweeps/ab/latency.png", "training/x/model", "mlflow.db"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text("theirs")
    own.claim(into, own.RESULTS, "INTO")
    (into / "sweeps" / "cd").mkdir(parents=True)
    (into / plans[1]).write_text("mine")
    merge([source], into)
    files = {str(path.relative_to(into)) for path in into.rglob("*") if path.is_file()}
    assert {name for name in files if not name.startswith(("records/", "samples/"))} == {own.MARKER, *plans}
    assert [(into / plan).read_text() for plan in plans] == ["theirs", "mine"]


@pytest.mark.parametrize("kind", ["missing", "empty", "itself", "a link to itself", "into a file"])
def test_what_cannot_be_merged_is_one_line_before_anything_is_written(kind, records, tmp_path, capsys):
    good, into, source = written(tmp_path / "good", records[:2]), tmp_path / "into", tmp_path / "from"
    if kind == "empty":
        source.mkdir()
    elif kind == "into a file":
        shutil.copytree(good, source)
        into.write_text("text")
    elif kind != "missing":
        source.symlink_to(written(into, records[2:3]))
        source = source if kind == "a link to itself" else into
    before = contents(into)
    assert main([str(good), str(source), str(into)]) == 2
    out, err = capsys.readouterr()
    named = f"INTO={str(into)!r}" if kind == "into a file" else f"FROM={str(source)!r}"
    assert out == "" and err.startswith(f"error: {named}: ") and err.count("\n") == 1
    assert contents(into) == before and (into.is_file() or not into.exists() or before)
