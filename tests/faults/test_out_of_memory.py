"""Cells that run out of memory on one core change nothing that is measured on the other."""

from datetime import datetime

import pytest
from aftermath import A_WORKER_PER_CORE, CHEAP, Sweep
from scipy.stats import binom

from bench.records.summary import quantities

pytestmark = [pytest.mark.faults, pytest.mark.needs("two_cores")]

OOMS, PAIRS = 20, 40
# Of pairs that are alike, one in twenty is called different by chance; one run in a thousand has more than this.
MOST = int(binom.isf(0.001, PAIRS, 0.05))
SMALL = CHEAP[:4]
MEMORY = ["bench=memory", "bench.passes=[forward]"]
EATS = "odd_forward_allocate_for_ever"
WORKERS = [*A_WORKER_PER_CORE, "bench.memory_limit=0.5"]


def end(sweep, process):
    """Wait for a sweep that nobody disturbs; gives its records by how they ended."""
    _, stderr = process.communicate(timeout=600)
    assert process.returncode == 0 and "Traceback" not in stderr, stderr
    records = sweep.records()
    return [[record for record in records if record.status == status] for status in ("ok", "oom")]


def peaks(records):
    return {record.cell_id: record.measurements["passes"] for record in records}


def beside(record, others):
    """Whether one of the others ran when this one did."""
    started, ended = (datetime.fromisoformat(moment) for moment in (record.started, record.ended))
    spans = [(datetime.fromisoformat(other.started), datetime.fromisoformat(other.ended)) for other in others]
    return any(began < ended and started < over for began, over in spans)


def test_cells_out_of_memory_change_no_peak_beside_them(tmp_path, promise):
    """Cells that run out of memory change no peak that is measured on another core"""
    found = []
    for attention, cells in {"odd_fine_0": OOMS, f"{EATS},odd_fine_0": 2 * OOMS}.items():
        sweep = Sweep(tmp_path / str(cells), *MEMORY, *WORKERS, cells=cells, attention=attention, cheap=SMALL)
        found.append(end(sweep, sweep.start()))
    (alone, none), (disturbed, eaters) = found
    assert (len(alone), len(none), len(disturbed), len(eaters)) == (OOMS, 0, OOMS, OOMS)
    assert any(beside(record, eaters) for record in disturbed)
    assert peaks(disturbed) == peaks(alone)
    promise(out_of_memory=OOMS, neighbours=OOMS, none="neighbours_lost bytes_that_differ")


def test_cells_out_of_memory_change_no_comparison_beside_them(tmp_path, promise):
    """Cells that run out of memory on one core change no comparison on another: of a mechanism with itself, no more
    are called different than chance explains (5 % each)
    """
    pairs = ["bench=compare", "repeats=8", "bench.min_sample_ms=1", *WORKERS]
    compared = Sweep(tmp_path / "pairs", *pairs, cells=2 * PAIRS, attention="odd_fine_0,odd_fine_1", cheap=SMALL)
    eating = Sweep(tmp_path / "eaters", *MEMORY, *WORKERS, cells=OOMS, attention=EATS, cheap=SMALL)
    ways = [(sweep, sweep.start(before=("taskset", "-c", core))) for sweep, core in ((compared, "0"), (eating, "1"))]
    (ok, lost), (_, eaters) = (end(*way) for way in ways)
    assert (len(ok), len(lost), len(eaters)) == (PAIRS, 0, OOMS)
    met = [record for record in ok if beside(record, eaters)]
    told = [quantity for record in met for quantity in quantities(record) if quantity.metric == "speedup"]
    different = [quantity for quantity in told if quantity.verdict != "tie"]
    assert len(met) == len(told) >= PAIRS // 2 and len(different) <= MOST, told
    promise(out_of_memory=OOMS, comparisons_beside=len(met), neighbours_lost=0, called_different=len(different))
