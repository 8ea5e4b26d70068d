"""A cell that is forked measures what one measures that is started from nothing."""

import pytest
from one_cell import one_cell

from bench.execution.runner import Runner
from bench.records.store import Store

WAYS = ("fork", "spawn")
SIZES = {"num_heads": 2, "seq_len": 512}


def measured(cell, way, folder, monkeypatch):
    monkeypatch.setenv("ATTENTION_ZOO_START", way)
    record = Runner(Store(folder)).run_cell(cell)
    assert record.status == "ok", record.reason
    return record


@pytest.mark.faults
@pytest.mark.parametrize("attention", ["softmax", "polysketch", "performer", "skeinformer", "informer"])
@pytest.mark.parametrize("bench", ["memory", "spectral_norm"])
def test_peak_memory_and_errors_of_the_two_ways_are_the_same_to_the_bit(
    attention, bench, tmp_path, monkeypatch, promise
):
    """Peak memory and spectral-norm errors are the same to the bit, forked or not"""
    cell = one_cell(attention, bench, **SIZES)
    forked, spawned = (measured(cell, way, tmp_path, monkeypatch) for way in WAYS)
    assert forked.measurements == spawned.measurements
    assert forked.inputs_sha256 == spawned.inputs_sha256
    promise(cells=1, differing=0)


@pytest.mark.faults
def test_a_cell_starts_at_once(tmp_path, monkeypatch, promise):
    """A cell starts at once: beside its measurement it takes less than 0.3 s, though other tests run beside it"""
    cell = one_cell("flash", {"name": "latency", "passes": ["forward"]}, **SIZES)
    measured(cell, "fork", tmp_path, monkeypatch)  # the server starts once
    overheads = sorted(Runner(Store(tmp_path)).run_cell(cell).overhead_s for _ in range(20))
    promise(cells=20, median=overheads[10], longest=overheads[-1])
    assert overheads[10] < 0.3
