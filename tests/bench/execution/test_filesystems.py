"""File systems that do not lock files, or on one node only, are refused before anything is measured there."""

import errno
import fcntl
import os

import pytest

from bench.common.errors import ConfigError
from bench.execution import filesystems
from bench.execution.filesystems import require_locks
from bench.execution.folder import prepare_folder
from bench.execution.slots import slots


def test_a_file_system_that_locks_files_is_taken_also_by_two_at_once(tmp_path):
    require_locks(tmp_path, "results_dir=x")
    with open(tmp_path / ".probe") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        require_locks(tmp_path, "results_dir=x")


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL])
def test_one_that_does_not_is_refused_in_one_line(tmp_path, monkeypatch, number):
    def refuse(descriptor, operation):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(filesystems.fcntl, "flock", refuse)
    expected = f"results_dir='.+': its file system does not lock files .flock: {os.strerror(number)}.; must be on"
    with pytest.raises(ConfigError, match=expected):
        prepare_folder(str(tmp_path / "runs"))


def test_one_that_lets_two_hold_a_lock_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(filesystems.fcntl, "flock", lambda descriptor, operation: None)
    monkeypatch.setenv("ATTENTION_ZOO_SLOTS", str(tmp_path))
    with pytest.raises(ConfigError, match=r"^ATTENTION_ZOO_SLOTS=.+: its file system only pretends"):
        slots()


@pytest.mark.parametrize(
    ("kind", "options", "said"),
    [
        ("ext4", "rw,relatime", None),
        ("nfs4", "rw,vers=4.2,local_lock=none", None),
        ("nfs", "rw,vers=3,nolock,local_lock=none", "nolock"),
        ("nfs", "rw,vers=3,local_lock=flock", "local_lock=flock"),
        ("nfs", "rw,vers=3,local_lock=all", "local_lock=all"),
        ("nfs", "rw,vers=3,local_lock=posix", None),
        ("lustre", "rw,localflock,lazystatfs", "localflock"),
        ("lustre", "rw,flock,lazystatfs", None),
        ("cifs", "rw,nobrl", "nobrl"),
        ("fuse.sshfs", "rw,user_id=0", "fuse.sshfs"),
    ],
)
def test_locks_that_stay_on_one_node_are_refused_where_nodes_share(tmp_path, monkeypatch, kind, options, said):
    here = tmp_path / "a b" / "runs"
    here.mkdir(parents=True)
    mounts = tmp_path / "mountinfo"
    point = str(tmp_path / "a b").replace(" ", r"\040")
    mounts.write_text(
        "22 1 254:0 / / rw,nolock shared:1 - ext4 /dev/root rw\n"
        f"90 22 0:50 / {point} rw,relatime shared:2 master:1 - xfs disk rw,nolock\n"
        f"91 22 0:51 / {point} rw,relatime - {kind} server:/x {options}\n"
    )
    monkeypatch.setattr(filesystems, "MOUNTS", mounts)
    require_locks(here, "results_dir=x")
    if said is None:
        require_locks(here, "results_dir=x", shared=True)
    else:
        with pytest.raises(ConfigError, match=f"results_dir=x: .* for one node only .*{said}"):
            require_locks(here, "results_dir=x", shared=True)


def test_this_machine_says_what_it_has_mounted(tmp_path):
    kind, options = filesystems._mount(tmp_path)
    assert not filesystems.MOUNTS.exists() or (kind and options)
