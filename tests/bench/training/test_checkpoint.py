"""Checkpoints: whole or not there, whatever happens to the disk and to the files."""

import errno
import os

import pytest
import torch

from bench.training import checkpoint


def state(step):
    return {"step": step, "model": {"weight": torch.full((3,), float(step))}, "curve": {"train_loss": [1.5] * step}}


def test_the_newest_is_read_and_older_ones_go(tmp_path):
    assert checkpoint.newest(tmp_path / "none") is None
    for step in (3, 20, 100):
        checkpoint.save(tmp_path / "deeper", step, state(step))
    found = checkpoint.newest(tmp_path / "deeper")
    assert found["step"] == 100 and torch.equal(found["model"]["weight"], torch.full((3,), 100.0))
    assert len(list((tmp_path / "deeper").iterdir())) == checkpoint.KEPT
    checkpoint.clear(tmp_path / "deeper")
    assert list((tmp_path / "deeper").iterdir()) == []


@pytest.mark.parametrize("damage", [b"", b"PK", None], ids=["empty", "garbage", "cut"])
def test_a_damaged_one_is_passed_over_and_named(tmp_path, capsys, damage):
    checkpoint.save(tmp_path, 1, state(1))
    checkpoint.save(tmp_path, 2, state(2))
    last = tmp_path / "step-0000000002.pt"
    last.write_bytes(last.read_bytes()[:-100] if damage is None else damage)
    assert checkpoint.newest(tmp_path)["step"] == 1
    assert "step-0000000002.pt: passed over" in capsys.readouterr().err


def test_code_in_a_checkpoint_is_not_run(tmp_path, capsys):
    class Malice:
        def __reduce__(self):
            return os.system, ("touch " + str(tmp_path / "ran"),)

    torch.save({"step": 9, "model": Malice()}, tmp_path / "step-0000000009.pt")
    assert checkpoint.newest(tmp_path) is None and not (tmp_path / "ran").exists()


def test_a_full_disk_leaves_what_was_there(tmp_path, monkeypatch):
    checkpoint.save(tmp_path, 1, state(1))

    def full(*args):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        checkpoint.save(tmp_path, 2, state(2))
    assert [path.name for path in tmp_path.iterdir()] == ["step-0000000001.pt"]
    assert checkpoint.newest(tmp_path)["step"] == 1


def test_other_files_are_left_alone(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    (tmp_path / "step-x.pt").write_bytes(b"")
    checkpoint.save(tmp_path, 1, state(1))
    checkpoint.clear(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.safetensors", "step-x.pt"]
