"""Records travel as one file: all of them, nothing else, and they replace nothing."""

import io
import os
import shutil
import subprocess
import tarfile

import numpy as np
import pytest
from synthetic_records import memory, train

from bench.records.archive import ArchiveError, main, pack, unpack
from bench.records.store import Store


@pytest.fixture
def results(tmp_path):
    """Two records without samples of their own and two with."""
    rng = np.random.default_rng(0)
    for record in (*(memory("flash", n) for n in (512, 1024)), *(train("flash", 64, seed, rng) for seed in (0, 1))):
        Store(tmp_path / "runs").write(record)
    return tmp_path / "runs"


def members(archive):
    with tarfile.open(archive) as tar:
        return tar.getnames()


def assert_refused(folder, *entries, match=r"runs\.tgz: "):
    """That an archive of (member, content) pairs is refused whole."""
    with tarfile.open(folder / "runs.tgz", "w:gz") as tar:
        for member, content in entries:
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    with pytest.raises(ArchiveError, match=match):
        unpack(folder / "runs.tgz", folder / "home")
    assert not (folder / "home").exists()


def test_what_is_unpacked_is_what_was_packed(results, tmp_path):
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
    assert unpack(archive, tmp_path / "home") == (count, 0)
    assert Store(tmp_path / "home").load() == Store(results).load()
    name = members(archive)[-1]
    (tmp_path / "home" / name).write_text("mine")
    assert unpack(archive, tmp_path / "home") == (0, count), "nothing is replaced"
    assert (tmp_path / "home" / name).read_text() == "mine"


def test_a_folder_without_records_makes_no_archive(tmp_path, capsys):
    (tmp_path / "photos" / "mine").mkdir(parents=True)
    assert main(["pack", str(tmp_path / "a.tgz"), "--results", str(tmp_path / "photos")]) == 2
    assert capsys.readouterr().err.endswith("holds no records; must be a results folder\n")
    assert not (tmp_path / "a.tgz").exists()


@pytest.mark.parametrize("lacking", ["all", "one"])
def test_no_record_of_an_earlier_archive_is_lost(lacking, results, tmp_path, capsys):
    """A misspelt folder, or another one, under the name of an archive that has records."""
    archive, other = tmp_path / "runs.tgz", tmp_path / "other"
    pack(results, archive)
    before = archive.read_bytes()
    if lacking == "one":
        shutil.copytree(results, other)
        next((other / "records").iterdir()).unlink()
    assert main(["pack", str(archive), "--results", str(other)]) == 2
    assert "records that" in capsys.readouterr().err and archive.read_bytes() == before
    # More records may join those that it has.
    unpack(archive, other)
    assert main(["pack", str(archive), "--results", str(other)]) == 0


def test_a_pipe_is_no_archive(tmp_path, capsys):
    os.mkfifo(tmp_path / "pipe")
    assert main(["unpack", str(tmp_path / "pipe"), "--results", str(tmp_path / "home")]) == 2
    reason = "is no file; must be an archive that `make pack` wrote"
    assert capsys.readouterr().err == f"error: ARCHIVE={tmp_path}/pipe: {reason}\n"


NAME = "records/0123456789abcdef-0123456789abcdef.json"


@pytest.mark.parametrize("name", ["../evil.json", "/tmp/evil.json", "records/../../evil.json", "records/evil.py", NAME])
def test_what_is_no_record_is_refused_whole(results, tmp_path, name):
    store = Store(results)
    first = next(path for path in sorted(store.records_dir.iterdir()) if not store.samples_file(path.name).exists())
    good = tarfile.TarInfo(f"records/{first.name}"), first.read_bytes()
    assert_refused(tmp_path, good, (tarfile.TarInfo(name), b"{}"))


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE])
def test_a_link_is_no_record(tmp_path, kind):
    member = tarfile.TarInfo(NAME)
    member.type, member.linkname = kind, "/etc/passwd"
    assert_refused(tmp_path, (member, b""), match="is not a record's file")


def test_a_torn_archive_is_refused(results, tmp_path):
    archive = tmp_path / "runs.tgz"
    pack(results, archive)
    archive.write_bytes(archive.read_bytes()[: archive.stat().st_size // 2])
    with pytest.raises(ArchiveError):
        unpack(archive, tmp_path / "home")


def test_a_record_without_its_samples_is_refused(results, tmp_path):
    store = Store(results)
    name = next(store.samples_dir.iterdir()).name.removesuffix(".gz")
    record = tarfile.TarInfo(f"records/{name}"), (store.records_dir / name).read_bytes()
    assert_refused(tmp_path, record, match="samples")
