"""A full disk: at every write, one after the other, and a real one."""

import contextlib
import platform
import subprocess
from pathlib import Path

import pytest
from aftermath import Sweep, lines

from bench.records.record import RecordError

pytestmark = [
    pytest.mark.faults,
    pytest.mark.skipif(platform.system() != "Linux", reason="full disks are made by means of Linux"),
]

FULL = "No space left on device"
SHIM = Path(__file__).with_name("full_disk.c")


@pytest.fixture(scope="module")
def shim(tmp_path_factory):
    """The library that makes a folder a full disk."""
    library = tmp_path_factory.mktemp("shim") / "full_disk.so"
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", str(SHIM), "-o", str(library), "-ldl"], check=True)
    return library


class FullDisk:
    """A folder whose disk is full from the n-th call that needs space on, or at the n-th only."""

    def __init__(self, shim, folder, counter):
        self.shim, self.folder, self.counter = shim, folder, counter

    def environment(self, number, once=False):
        self.counter.write_bytes(bytes(16))
        settings = {"FULL_DISK": self.folder, "FULL_DISK_AFTER": number, "FULL_DISK_COUNTER": self.counter}
        settings |= {"LD_PRELOAD": self.shim} | ({"FULL_DISK_ONCE": 1} if once else {})
        return {key: str(value) for key, value in settings.items()}

    def calls(self):
        """How many calls there were."""
        return int.from_bytes(self.counter.read_bytes()[:8], "little")

    def failed(self):
        """The calls that failed, with their paths."""
        return self.counter.read_bytes()[16:].decode().splitlines()


def undisturbed(shim, folder, **settings):
    """How many calls a sweep needs space for."""
    sweep, disk = Sweep(folder / "undisturbed", **settings), FullDisk(shim, folder, folder / "counter")
    assert sweep.run(**disk.environment(10**9)).returncode == 0
    assert disk.calls() > 10 and disk.failed() == []
    return disk.calls()


def assert_said(result, sweep, disk):
    """Exit code 1 and a line; or 0, if every cell was measured all the same."""
    context = (disk.failed()[:3], result.stderr)
    assert "Traceback" not in result.stderr, context
    if result.returncode == 0:
        assert set(sweep.ok().values()) == {1} and len(sweep.ok()) == sweep.cells, context
        return
    # A results folder that cannot even be made is refused as any that cannot be used: nothing is started.
    refused = result.returncode == 2 and "error: results_dir=" in result.stderr and not sweep.records()
    assert result.returncode == 1 or refused, context
    said = [line for line in lines(result.stderr) if FULL in line]
    # What a cell could not write lies in a scratch folder that nobody knows.
    named = (str(disk.folder), "results_dir", "its result could not be written")
    assert said and all(any(name in line for name in named) for line in said), context


def break_at_all(numbers, shim, folder, once=False, **settings):
    """A sweep for each of the calls; fails with all that went wrong."""
    wrong = {}
    for number in numbers:
        try:
            break_at(shim, folder / str(number), number, once, **settings)
        except (AssertionError, RecordError) as error:
            wrong[number] = str(error)
    assert wrong == {}, "\n".join(f"{number}: {what}" for number, what in wrong.items())


def break_at(shim, folder, number, once, **settings):
    """One sweep on a disk that is full at a call; then the same with the disk free again."""
    sweep, disk = Sweep(folder / "disk", **settings), FullDisk(shim, folder / "disk", folder / "counter")
    result = sweep.run(**disk.environment(number, once))
    assert disk.failed(), f"call {number} was never made"
    assert_said(result, sweep, disk)
    sweep.records()
    sweep.assert_goes_on(f"after {disk.failed()[0]}")


SHARES = 4


@pytest.mark.needs("cc")
@pytest.mark.parametrize("share", range(SHARES))
@pytest.mark.parametrize("once", [False, True], ids=["from then on", "once"])
def test_a_disk_that_is_full_at_any_write_is_one_line_and_the_sweep_goes_on_later(shim, tmp_path, once, share, promise):
    """A disk that is full, at whichever write (the system call fails with ENOSPC), is one line that says so and exit
    code 1; when there is space the same command measures what is missing, and clears what is left over
    """
    calls = undisturbed(shim, tmp_path / "counted", cells=2)
    # Every second one, in each of the two ways the other half: what fails once is often what fails from then on.
    numbers = range(1 + share + SHARES * once, calls + 1, 2 * SHARES)
    break_at_all(numbers, shim, tmp_path, once, cells=2)
    promise(positions=len(numbers), none="torn lost measured_twice left_over")


@pytest.mark.needs("cc")
@pytest.mark.parametrize("share", range(2))
def test_a_disk_that_is_full_at_any_write_of_the_mirror_or_the_figures_costs_no_record(shim, tmp_path, share, promise):
    """The same with MLflow and figures on the disk: without them, too, the records are whole"""
    settings = {"cells": 2, "tracking": "mlflow"}
    calls = undisturbed(shim, tmp_path / "counted", **settings)
    numbers = [round(calls * (part + 0.5) / 6) for part in range(share, 6, 2)]
    break_at_all(numbers, shim, tmp_path, **settings)
    promise(positions=len(numbers), none="torn lost")


@pytest.mark.needs("cc")
def test_a_full_disk_for_temporary_files_costs_no_cell(shim, tmp_path, promise):
    """A full TMPDIR costs no cell"""
    sweep = Sweep(tmp_path, cells=2)
    disk = FullDisk(shim, sweep.tmp, tmp_path / "counter")
    result = sweep.run(**disk.environment(1))
    assert_said(result, sweep, disk)
    sweep.assert_goes_on()
    promise(sweeps=1, lost=0)


@pytest.mark.parametrize("full", ["stdout", "stderr"])
def test_a_log_on_a_full_disk_costs_no_record(tmp_path, full, promise):
    """Output that cannot be written (a log on a full disk) ends a sweep with exit code 1 and costs no record"""
    sweep = Sweep(tmp_path, cells=2)
    redirection = "> /dev/full" if full == "stdout" else "2> /dev/full"
    result = sweep.run(before=["sh", "-c", f'exec "$@" {redirection}', "sh"])
    assert result.returncode == 1 and "Traceback" not in result.stderr, result.stderr
    if full == "stdout":  # only the table is lost
        assert FULL in lines(result.stderr)[-1] and len(sweep.ok()) == sweep.cells
    sweep.assert_goes_on()
    promise(sweeps=1, lost=0)


@contextlib.contextmanager
def tmpfs(folder):
    """A real disk; skipped where none can be mounted."""
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", folder], capture_output=True)
    if mounted.returncode:
        pytest.skip("needs to mount a tmpfs: " + mounted.stderr.decode().strip().splitlines()[-1])
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.mark.needs("root")
def test_a_disk_that_becomes_read_only_is_one_line(tmp_path, promise):
    """A disk that becomes read-only is one line"""
    with tmpfs(tmp_path / "disk") as disk:
        sweep = Sweep(disk, cells=20)
        process = sweep.start()
        while "ok" not in process.stderr.readline():
            assert process.poll() is None
        # Files that are open for writing keep a disk from becoming read-only.
        while subprocess.run(["mount", "-o", "remount,ro", disk], capture_output=True).returncode:
            assert process.poll() is None
        _, stderr = process.communicate(timeout=100)
        assert process.returncode == 1 and "Traceback" not in stderr, stderr
        assert "Read-only file system" in lines(stderr)[-1] and str(disk) in lines(stderr)[-1]
        subprocess.run(["mount", "-o", "remount,rw", disk], check=True)
        sweep.assert_goes_on()
    promise(disks=1, lost=0)
