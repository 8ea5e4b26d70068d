"""Records travel as one file: all of them, nothing else, and they replace nothing."""

import io
import os
import shutil
import subprocess
import tarfile

import numpy as np
import pytest
from synthetic_records import memory, train, written

from bench.common.errors import ConfigError
from bench.records.archive import main, merge, pack
from bench.records.store import Store


@pytest.fixture
def results(tmp_path):
    """Two records without samples of their own and two with."""
    rng = np.random.default_rng(0)
    records = *(memory("flash", n) for n in (512, 1024)), *(train("flash", 64, seed, rng) for seed in (0, 1))
    return written(tmp_path / "runs", records)


def members(archive):
    with tarfile.open(archive) as tar:
        return tar.getnames()


def archived(path, *entries):
    """An archive of (member, content) pairs."""
    with tarfile.open(path, "w:gz") as tar:
        for member, content in entries:
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return path


def assert_refused(archive, folder):
    with pytest.raises(ConfigError, match=f"^{archive}: "):
        merge([archive], folder)
    assert not folder.exists()


def test_what_is_unpacked_is_what_was_packed(results, tmp_path, capsys):
    (results / "mlflow.db").write_text("not this")
    (results / "locks").mkdir()
    archive = tmp_path / "runs.tgz"
    count = pack(results, archive)
    samples = len(list(Store(results).samples_dir.iterdir()))
    assert len(members(archive)) == count + samples and (count, samples) == (4, 2)
    assert {name.split("/")[0] for name in members(archive)} == {"records", "samples"}
    with tarfile.open(archive) as tar:
        assert {(member.uid, member.uname) for member in tar} == {(0, "")}
    listed = subprocess.run(["tar", "tzf", archive], capture_output=True, text=True, check=True).stdout.splitlines()
    assert listed == members(archive), "the system's tar reads it"
    for _ in range(2):
        assert main(["unpack", str(archive), "--results", str(tmp_path / "home")]) == 0
    assert Store(tmp_path / "home").load() == Store(results).load()
    said = capsys.readouterr().out.splitlines()
    assert [line.rpartition(": ")[2] for line in said] == ["4 records added", "0 records added, 4 were there"]


@pytest.mark.parametrize("folder", ["photos", "photos/mine", "missing"])
def test_a_folder_without_records_makes_no_archive(folder, tmp_path, capsys):
    (tmp_path / "photos" / "mine").mkdir(parents=True)
    assert main(["pack", str(tmp_path / "a.tgz"), "--results", str(tmp_path / folder)]) == 2
    line = f"error: --results={str(tmp_path / folder)!r}: holds no records; must be a results folder\n"
    assert capsys.readouterr() == ("", line)
    assert not (tmp_path / "a.tgz").exists()


@pytest.mark.parametrize(("lacking", "why"), [("all", "holds no records"), ("one", "lacks 1 records that")])
def test_no_record_of_an_earlier_archive_is_lost(lacking, why, results, tmp_path, capsys):
    """A misspelt folder, or another one, under the name of an archive that has records."""
    archive, other = tmp_path / "runs.tgz", tmp_path / "other"
    pack(results, archive)
    before = archive.read_bytes()
    if lacking == "one":
        shutil.copytree(results, other)
        next((other / "records").iterdir()).unlink()
    assert main(["pack", str(archive), "--results", str(other)]) == 2
    assert why in capsys.readouterr().err and archive.read_bytes() == before
    # More records may join those that it has.
    merge([archive], other)
    assert main(["pack", str(archive), "--results", str(other)]) == 0


NAME = "records/0123456789abcdef-0123456789abcdef.json"


@pytest.mark.parametrize("name", ["../evil.json", "/tmp/evil.json", "records/../../evil.json", "records/evil.py"])
def test_what_is_no_record_is_refused_whole(results, tmp_path, name):
    first = next(Store(results).records_dir.iterdir())
    good = tarfile.TarInfo(f"records/{first.name}"), first.read_bytes()
    assert_refused(archived(tmp_path / "runs.tgz", good, (tarfile.TarInfo(name), b"{}")), tmp_path / "home")


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE])
def test_a_link_is_no_record(tmp_path, kind):
    member = tarfile.TarInfo(NAME)
    member.type, member.linkname = kind, "/etc/passwd"
    assert_refused(archived(tmp_path / "runs.tgz", (member, b"")), tmp_path / "home")


@pytest.mark.parametrize("kind", ["torn", "a pipe"])
def test_what_is_no_archive_is_refused(kind, results, tmp_path):
    archive = tmp_path / "runs.tgz"
    if kind == "a pipe":
        os.mkfifo(archive)
    else:
        pack(results, archive)
        archive.write_bytes(archive.read_bytes()[: archive.stat().st_size // 2])
    assert_refused(archive, tmp_path / "home")


def test_what_is_no_record_or_lacks_its_samples_is_named_and_costs_no_other(results, tmp_path, capsys):
    records = [(tarfile.TarInfo(f"records/{path.name}"), path.read_bytes()) for path in (results / "records").iterdir()]
    archive = archived(tmp_path / "runs.tgz", *records, (tarfile.TarInfo(NAME), b"{}"))
    assert main(["unpack", str(archive), "--results", str(tmp_path / "home")]) == 1
    out, err = capsys.readouterr()
    assert "2 records added, 3 skipped" in out and err.count("skipped, its samples: are not in the archive") == 2


def test_a_record_whose_samples_were_lost_is_mended(results, tmp_path, capsys):
    archive, home = tmp_path / "runs.tgz", tmp_path / "home"
    pack(results, archive)
    for said in ("4 records added", "2 records added, 2 were there"):
        assert main(["unpack", str(archive), "--results", str(home)]) == 0
        assert capsys.readouterr().out.splitlines()[-1].endswith(said)
        assert Store(home).load() == Store(results).load()
        for path in Store(home).samples_dir.iterdir():
            path.unlink()
    # Where the source has lost them, too, there is no conflict: it is a record that cannot be read.
    assert main(["unpack", str(archive), "--results", str(home)]) == 0
    for folder in (results, home):
        for path in Store(folder).samples_dir.iterdir():
            path.unlink()
    capsys.readouterr()
    assert merge([results], home) == {"records added": 0, "were there": 2, "in conflict": 0, "skipped": 2}
    assert "conflict" not in capsys.readouterr().err
