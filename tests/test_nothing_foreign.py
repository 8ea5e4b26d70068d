"""Somebody else's files stay as they are, wherever the suite is sent: content, mode, times, owner, links."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from command import code_of
from synthetic_records import config, memory, record
from tracking_server import a_free_port

import analysis.__main__ as analysis
from bench import merge, status
from bench.cli import wait
from bench.cli.main import guarded
from bench.common.errors import ConfigError
from bench.execution.device_locks import lock_folder
from bench.execution.results_folder import check_folder, prepare_folder
from bench.records import archive, own
from bench.records.store import Store
from bench.tracking import ui

ROOT = Path(__file__).parents[1]
CELL = "0123456789abcdef"
RECORD = f"{CELL}-{CELL}.json"
# Every name that the suite uses at the top of a folder that some command takes, and what may lie below it.
NAMES = (
    *(".attention-zoo", "index.json", "mlflow.db", "mlflow.lock", "mlflow-server.log", "hydra/mine"),
    *("records/mine.txt", f"records/{RECORD}", f"records/.{RECORD}.1.tmp", "records/.mine.tmp"),
    *("samples/mine.json", f"samples/{RECORD}", "scratch/thesis/thesis.tex", f"scratch/{CELL}/mine"),
    *("inputs/mine.npy", "inputs/.mine.tmp", f"locks/{CELL}.lock", "locks/mine", "sweeps/mine", "mlartifacts/mine"),
    *(f"sweeps/{CELL}/plan.json.gz", f"training/{CELL}/step-0000000001.pt", "training/mine"),
    *("figures/memory.png", "tables/skeinformer_table3.md", "memory.png", "skeinformer_table3.md"),
    *("machine.lock", "core-0.lock", "seat-0.lock", ".probe"),
    *("project/mine", "wheels/mine", "site/mine", "run", "runs/mine", "out/mine", "index.html", "_static/mine"),
)
DEVICE = pytest.param("device", marks=pytest.mark.needs("root"))
KINDS = ("file", "link", "dangling link", "link to a folder", "pipe", DEVICE)


def leave(path, kind, elsewhere):
    """Something of somebody else's at a path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "file":
        path.write_text("mine")
        path.chmod(0o640)
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        os.mknod(path, 0o600 | 0o020000, os.makedev(1, 7))  # /dev/full
    else:
        target = {"link": elsewhere / "file", "dangling link": elsewhere / "nothing"}.get(kind, elsewhere)
        path.symlink_to(target)


def snapshot(*folders):
    """All that can be seen of everything below."""
    seen = {}
    for folder in folders:
        for path in (folder, *sorted(folder.rglob("*"))):
            about = path.lstat()
            content = path.read_bytes() if path.is_file() and not path.is_symlink() else None
            target = os.readlink(path) if path.is_symlink() else None
            seen[path] = about.st_mode, about.st_mtime_ns, about.st_uid, about.st_gid, about.st_nlink, content, target
    return seen


@pytest.fixture
def elsewhere(tmp_path):
    """What links lead to: a folder with a file, and with folders named as the suite's."""
    folder = tmp_path / "elsewhere"
    for name in NAMES:
        leave(folder / name, "file", folder)
    (folder / "file").write_text("mine")
    return folder


@pytest.fixture
def results(tmp_path):
    """Results of the suite, with an archive of them."""
    store = Store(tmp_path / "ours")
    store.write(record(config("flash", {"name": "latency"}, 64), status="oom"))
    store.write(memory("flash", 1024))
    archive.pack(tmp_path / "ours", tmp_path / "ours.tgz")
    return tmp_path / "ours"


def refused(*steps):
    """The exit code of steps that a command takes before it does anything else."""
    try:
        for step in steps:
            step()
    except ConfigError:
        return 2
    return 0


def sweep(folder):
    """What a sweep does to its results folder before it measures."""
    return refused(lambda: check_folder(str(folder)), lambda: prepare_folder(str(folder)))


def locks(folder, monkeypatch):
    """What a sweep does to the folder of the devices' locks."""
    monkeypatch.setenv("ATTENTION_ZOO_SLOTS", str(folder))
    return refused(lock_folder)


def main_of(run, *arguments):
    return code_of(run, [str(argument) for argument in arguments])


def python(*arguments):
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, stdin=subprocess.DEVNULL, timeout=300).returncode


def pack_for_gpu(folder):
    return python("gpu/pack.py", "--to", folder, "--without", "wheels", "inputs")


def writers(results, monkeypatch):
    """Every way to name a folder that is written to."""
    home = results.with_suffix(".tgz")
    return {
        "sweep": sweep,
        "locks": lambda folder: locks(folder, monkeypatch),
        "merge": lambda folder: main_of(merge.main, results, folder),
        "unpack": lambda folder: main_of(archive.main, "unpack", home, "--results", folder),
        "figures": lambda folder: main_of(analysis.main, "figures", "--results", results, "--out", folder),
        "tables": lambda folder: main_of(analysis.main, "tables", "--results", results, "--out", folder),
        "ui": lambda folder: main_of(ui.main, "--results", folder, "--port", a_free_port()),
    }


def readers(results):
    """Every way to name a folder that is read."""
    return {
        "figures of": lambda folder: main_of(analysis.main, "figures", "--results", folder),
        "tables of": lambda folder: main_of(analysis.main, "tables", "--results", folder),
        "table of": lambda folder: main_of(analysis.main, "table", "--results", folder),
        "list of": lambda folder: main_of(analysis.main, "list", "--results", folder),
        "status of": lambda folder: main_of(status.main, "--results", folder),
        "wait for": lambda folder: guarded(lambda: main_of(wait.run, CELL, "--results", folder)),
        "pack from": lambda folder: main_of(archive.main, "pack", results.with_name("new.tgz"), "--results", folder),
        "merge from": lambda folder: main_of(merge.main, folder, results.with_name("new")),
    }


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_of_somebody_elses_stays_as_it_is(kind, tmp_path, results, elsewhere, monkeypatch, capsys):
    folder = tmp_path / "theirs"
    for name in NAMES:
        leave(folder / name, kind, elsewhere)
    before = snapshot(folder, elsewhere)
    assert {run(folder) for run in writers(results, monkeypatch).values()} == {2}
    for run in readers(results).values():
        run(folder)
    assert snapshot(folder, elsewhere) == before
    assert "Traceback" not in capsys.readouterr().err


INSIDE = ("ours/records", "ours/sweeps/new", "ours/training/mine/new")
PLACES = {"": ("sweep", "locks"), "file": (), **dict.fromkeys(INSIDE, ("locks",))}


@pytest.mark.parametrize(("place", "others"), PLACES.items())
def test_what_can_be_no_folder_of_the_suites_is_refused(place, others, results, monkeypatch, tmp_path, capsys):
    """Not the current folder where no name is given, no file, and nothing inside the results' own folders."""
    monkeypatch.chdir(tmp_path)
    assert sweep(results) == 0
    folder = place and tmp_path / place
    if place == "file":
        folder.write_text("mine")
    elif place:
        folder.mkdir(parents=True, exist_ok=True)
    before = snapshot(tmp_path)
    for command, run in writers(results, monkeypatch).items():
        if command not in others:
            assert run(folder) == 2 and snapshot(tmp_path) == before, command
    assert (Path(place).name or "must name a file or folder") in capsys.readouterr().err


# Names of the pack and the site mean nothing to the others: one of them stands for all.
OF_OTHERS = {"project", "wheels", "run", "runs", "out", "_static", "index.html"}


@pytest.mark.parametrize("name", sorted({name.partition("/")[0] for name in NAMES} - OF_OTHERS))
def test_one_name_is_enough_to_refuse_a_folder_before_anything_is_written(
    name, tmp_path, results, elsewhere, monkeypatch, capsys
):
    monkeypatch.setattr(analysis, "made", lambda *_: iter(()))  # what would be drawn is another test's
    whose = {"sweep": own.RESULTS, "locks": own.SLOTS, "merge": own.RESULTS, "unpack": own.RESULTS, "ui": own.RESULTS}
    for command, run in writers(results, monkeypatch).items():
        if command == "ui" and name not in own.RESULTS.names:  # it would go on until it is interrupted
            continue
        folder = tmp_path / command
        leave(folder / name, "link" if name == "mlflow.db" else "file", elsewhere)
        before = snapshot(folder, elsewhere)
        code, after = run(folder), snapshot(folder, elsewhere)
        assert before[folder / name] == after[folder / name], command
        if code and command in whose:
            assert after == before, command


@pytest.mark.parametrize("kind", KINDS)
def test_among_results_of_the_suite_what_is_not_of_its_form_stays(kind, results, elsewhere, capsys):
    """Of another name, or no file where the suite has files of its own."""
    assert sweep(results) == 0
    names = [
        name
        for name in (*NAMES, "scratch/mine", "scratch/.mine", "records/mine", "notes.txt", f"locks/{CELL}.txt")
        if name.partition("/")[0] in (*own.FOLDERS, "notes.txt", "figures", "tables") and CELL not in name
    ]
    if kind != "file":
        names += [f"locks/{CELL}.lock", f"scratch/{CELL}", f"records/.{RECORD}.1.tmp", f"samples/{RECORD}"]
        names.append("index.json")
    for name in names:
        leave(results / name, kind, elsewhere)
    kept = [elsewhere, *(results / name for name in names)]
    before = snapshot(*kept)
    assert sweep(results) == (2 if "link" in kind else 0)
    assert main_of(merge.main, results, results.with_name("new")) == 0
    assert main_of(status.main, "--results", results) in (0, 1, 2)
    assert main_of(analysis.main, "table", "--results", results) == 0
    for what in ("figures", "tables"):
        assert main_of(analysis.main, what, "--results", results) in ((2,) if kind == "file" else (1, 2))
    assert snapshot(*kept) == before
    assert "Traceback" not in capsys.readouterr().err


def test_files_that_are_named_are_written_over_only_where_the_suite_wrote_them(results, tmp_path, capsys):
    table, packed = tmp_path / "table.csv", tmp_path / "packed.tgz"
    for path, arguments in ((table, ("table", "--csv", table)), (packed, ("pack", packed))):
        run = analysis.main if path == table else archive.main
        for _ in range(2):  # what it has written it writes again
            assert main_of(run, *arguments, "--results", results) == 0
        path.write_text("mine")
        assert main_of(run, *arguments, "--results", results) in (1, 2)
        assert path.read_text() == "mine"


def test_no_mode_is_changed_but_of_what_was_just_made(tmp_path, monkeypatch):
    named = tmp_path / "named"
    named.mkdir(mode=0o750)
    assert locks(named, monkeypatch) == 0 and named.stat().st_mode & 0o7777 == 0o750
    assert locks(tmp_path / "new", monkeypatch) == 0 and (tmp_path / "new").stat().st_mode & 0o7777 == 0o1777
    (tmp_path / "link").symlink_to(named)
    assert locks(tmp_path / "link", monkeypatch) == locks("", monkeypatch) == 2


def test_what_a_sweep_removes_has_its_lock_or_its_name(results):
    assert sweep(results) == 0
    theirs = (f"scratch/{CELL}/mine", ".mine.0123abcd.tmp")
    for name in theirs:
        leave(results / name, "file", results)
    left = results / "scratch" / CELL[::-1]
    left.mkdir()
    (results / "locks" / f"{left.name}.lock").write_text("")
    assert sweep(results) == 0
    assert [(results / name).exists() for name in theirs] == [True, True] and not left.exists()


def test_older_results_get_the_marker(results):
    (results / "figures").mkdir()
    assert not own.is_marked(results, own.RESULTS)
    assert sweep(results) == 0 and own.is_marked(results, own.RESULTS)
    assert own.is_marked(results / "figures", own.drawn(()))
    assert len(Store(results).names()) == 2


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="a pack is made of a commit")
@pytest.mark.commands
def test_a_pack_keeps_what_calls_have_left(tmp_path, elsewhere):
    folder = tmp_path / "pack"
    assert pack_for_gpu(folder) == 0
    for name in ("out/call1.log", "runs/records/mine.json", "notes.txt"):
        leave(folder / name, "file", elsewhere)
    (folder / "project" / "stale").write_text("")
    packed = (folder / "project" / "README.md").read_bytes()
    before = {name: snapshot(folder / name) for name in ("out", "runs/records", "notes.txt")}
    assert pack_for_gpu(folder) == 2 and (folder / "project" / "stale").exists()
    (folder / "project" / "stale").unlink()
    (folder / "project" / "README.md").write_text("mine")
    assert pack_for_gpu(folder) == 2 and (folder / "project" / "README.md").read_text() == "mine"
    (folder / "project" / "README.md").write_bytes(packed)
    (folder / "project" / "bench" / "__pycache__").mkdir()
    assert pack_for_gpu(folder) == 0
    assert {name: snapshot(folder / name) for name in before} == before
    for name in ("project", "run"):
        theirs = tmp_path / f"with {name}"
        leave(theirs / name, "file", elsewhere)
        before = snapshot(theirs)
        assert pack_for_gpu(theirs) == 2 and snapshot(theirs) == before


@pytest.mark.commands
def test_pages_are_not_built_among_those_of_somebody_else(tmp_path, elsewhere):
    pages = tmp_path / "pages"
    leave(pages / "index.html", "file", elsewhere)
    before = snapshot(pages)
    assert python("-m", "sphinx", "-q", "docs", pages) != 0 and snapshot(pages) == before
