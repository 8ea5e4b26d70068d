"""File systems without locks, real ones and simulated: an error that says so instead of a silent race."""

import errno
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

import pytest
from command import TINY, bench

pytestmark = [
    pytest.mark.faults,
    pytest.mark.skipif(platform.system() != "Linux", reason="such file systems are made by means of Linux"),
]

HERE = Path(__file__).parent
SAID = {
    errno.ENOLCK: "its file system does not lock files (flock: No locks available)",
    errno.ENOSYS: "its file system does not lock files (flock: Function not implemented)",
    errno.EOPNOTSUPP: "its file system does not lock files (flock: Operation not supported)",
    0: "its file system only pretends to lock files (flock: two held one lock)",
}
PROMISE = (
    "A results folder, or a folder of the devices' locks, whose file system has no flock or one without effect is"
    " refused with one line before anything is measured"
)


@pytest.fixture
def mounted(tmp_path, request):
    """A folder on a FUSE file system whose flock ends with an error number."""
    below, mountpoint = tmp_path / "below", tmp_path / "mounted"
    below.mkdir()
    mountpoint.mkdir()
    arguments = [sys.executable, str(HERE / "no_locks.py"), str(below), str(mountpoint), str(request.param)]
    process = subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True)
    try:
        while not os.path.ismount(mountpoint):
            if process.poll() is not None:
                pytest.skip(f"needs to mount by FUSE: {process.stderr.read().strip()}")
            time.sleep(0.05)
        yield mountpoint, request.param
    finally:
        subprocess.run(["fusermount3", "-u", "-z", str(mountpoint)], check=False, capture_output=True)
        process.kill()
        process.communicate()


def refusals(folder, **env):
    """The last line that a sweep says for a folder of locks, and for a results folder, in that folder."""
    for results, slots, name in (
        (folder.parent / "runs", folder / "slots", "ATTENTION_ZOO_SLOTS="),
        (folder / "runs", folder.parent / "slots", "results_dir='"),
    ):
        result = bench(
            "attention=v_mean", "tracking=none", f"results_dir={results}", *TINY, ATTENTION_ZOO_SLOTS=str(slots), **env
        )
        assert result.returncode == 2 and not list(results.glob("records/*.json")), result.stderr
        line = result.stderr.splitlines()[-1]
        assert line.startswith(f"error: {name}"), line
        yield line


@pytest.mark.needs("fuse")
@pytest.mark.parametrize("mounted", SAID, indirect=True)
def test_a_file_system_without_locks_is_refused(mounted, promise):
    folder, number = mounted
    said = list(refusals(folder))
    assert all(SAID[number] in line for line in said), said
    promise(f"{PROMISE} (FUSE)", refused=len(said), measured=0)


@pytest.mark.needs("cc")
def test_a_simulated_file_system_without_locks_is_refused(tmp_path, promise):
    library = tmp_path / "no_locks.so"
    subprocess.run(["cc", "-shared", "-fPIC", str(HERE / "no_locks.c"), "-o", str(library)], check=True)
    folder, refused = tmp_path / "folder", 0
    folder.mkdir()
    for number, words in SAID.items():
        # Everything is without locks then: the folder of locks is looked at first.
        said = next(refusals(folder, LD_PRELOAD=str(library), NO_LOCKS=str(number)))
        assert words in said
        refused += 1
    promise(f"{PROMISE} (simulated)", refused=refused, measured=0)
