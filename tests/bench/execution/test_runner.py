"""A cell is measured once, even by two sweeps whose locks somebody removed."""

import contextlib
import errno
import shutil

import pytest
from synthetic_everything import everything

from bench.execution import runner
from bench.execution.runner import Runner
from bench.plan.cell import Cell
from bench.records.store import Store


def test_a_cell_that_was_measured_while_this_waited_for_the_device_is_not_measured_again(tmp_path, monkeypatch):
    theirs = next(record for record in everything() if record.status == "ok" and record.config["device"] == "cpu")
    store = Store(tmp_path / "runs")
    store.records_dir.mkdir(parents=True)

    @contextlib.contextmanager
    def another_has_it(*device, **options):
        shutil.rmtree(store.root / "locks")
        store.write(theirs)
        yield ()

    monkeypatch.setattr(runner, "hold_device", another_has_it)
    monkeypatch.setattr(Runner, "run_cell", lambda *args: pytest.fail("measured twice"))
    record = Runner(store).measure(Cell(theirs.config, theirs.cell_id, 1.0))
    assert record.record_id == theirs.record_id


@pytest.mark.parametrize("written", [True, False])
def test_checkpoints_are_removed_when_the_record_is_safe(tmp_path, monkeypatch, written):
    """A kill or a full disk before that costs what it costs while a model trains."""
    record = next(one for one in everything() if one.status == "ok" and one.config["device"] == "cpu")
    store = Store(tmp_path / "runs")
    store.records_dir.mkdir(parents=True)
    checkpoint = store.root / "training" / record.cell_id[:16] / "step-0000000007.pt"
    checkpoint.parent.mkdir(parents=True)
    checkpoint.write_text("")

    def write(self, record):
        assert checkpoint.exists()
        if not written:
            raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(Store, "write", write)
    monkeypatch.setattr(runner, "hold_device", lambda *device, **options: contextlib.nullcontext(()))
    monkeypatch.setattr(Runner, "run_cell", lambda *args: record)
    with contextlib.nullcontext() if written else pytest.raises(OSError, match="full"):
        Runner(store).measure(Cell(record.config, record.cell_id, 1.0))
    assert checkpoint.exists() != written
