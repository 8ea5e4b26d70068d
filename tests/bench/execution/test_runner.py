"""A cell is measured once, even by two sweeps whose locks somebody removed."""

import contextlib
import dataclasses
import errno
import shutil

import pytest
from synthetic_everything import everything

from bench.common.errors import UnfinishedError
from bench.execution import runner, sweep
from bench.execution.runner import Runner, readable
from bench.plan.cell import Cell
from bench.plan.config import Config
from bench.records import disk
from bench.records.store import Store
from bench.records.summary import Results


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


@pytest.mark.parametrize("count", [10_000, 250_000])
def test_a_measurement_that_is_too_large_to_be_read_again_is_an_error_that_can(tmp_path, monkeypatch, count):
    monkeypatch.setattr(disk, "LARGEST", 2**22)
    good = next(record for record in everything() if record.status == "ok" and "samples" in str(record.measurements))
    more = good.measurements | {"no_metric": {"samples": [1e6 / 3] * count}}
    record = readable(dataclasses.replace(good, measurements=more, summary={}))
    fits = count == 10_000
    assert record.status == ("ok" if fits else "error") and bool(record.measurements) == fits
    assert fits or record.reason == "what was measured is no record: its samples have 5 MiB; must have at most 4"
    store = Results(tmp_path)
    store.write(record)
    assert store.load() == [record]


def test_a_cell_whose_record_somebody_removed_is_one_line(tmp_path, monkeypatch):
    record = next(record for record in everything() if record.status == "ok")
    cell = Cell(record.config, record.cell_id, 60.0)
    monkeypatch.setattr(sweep, "check_cells", lambda cells, cache_dir, **more: list(cells))
    monkeypatch.setattr(sweep.executors, "run", lambda *removed: None)
    settings = Config(attention={}, bench={}, inputs={}, tracking={}, results_dir=str(tmp_path))
    with pytest.raises(UnfinishedError, match=rf"^{cell.title}: has no record that can be read, one of 1 such cells$"):
        sweep.run_sweep(sweep.Sweep((cell,), settings, ()))
