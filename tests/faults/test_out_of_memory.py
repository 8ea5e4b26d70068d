"""Cells that run out of memory on one core change no peak that is measured on the other."""

from datetime import datetime

import pytest
from aftermath import A_WORKER_PER_CORE, CHEAP, Sweep

pytestmark = [pytest.mark.faults, pytest.mark.needs("two_cores")]

OOMS = 20
SMALL = CHEAP[:4]
MEMORY = ["bench=memory", "bench.passes=[forward]", "bench.memory_limit=0.5"]
EATS = "odd_forward_allocate_for_ever"


def beside(record, others):
    """Whether one of the others ran when this one did."""
    started, ended = (datetime.fromisoformat(moment) for moment in (record.started, record.ended))
    spans = [(datetime.fromisoformat(other.started), datetime.fromisoformat(other.ended)) for other in others]
    return any(began < ended and started < over for began, over in spans)


def test_cells_out_of_memory_change_no_peak_beside_them(tmp_path, promise):
    """Cells that run out of memory change no peak that is measured on another core"""
    found = []
    for attention, cells in {"odd_fine_0": OOMS, f"{EATS},odd_fine_0": 2 * OOMS}.items():
        settings = [*MEMORY, *A_WORKER_PER_CORE]
        sweep = Sweep(tmp_path / str(cells), *settings, cells=cells, attention=attention, cheap=SMALL)
        result = sweep.run(timeout=600)
        assert result.returncode == 0 and "Traceback" not in result.stderr, result.stderr
        records = sweep.records()
        found.append([[record for record in records if record.status == status] for status in ("ok", "oom")])
    (alone, none), (disturbed, eaters) = found
    assert (len(alone), len(none), len(disturbed), len(eaters)) == (OOMS, 0, OOMS, OOMS)
    assert any(beside(record, eaters) for record in disturbed)
    peaks = {record.cell_id: record.measurements["passes"] for record in alone}
    assert {record.cell_id: record.measurements["passes"] for record in disturbed} == peaks
    promise(out_of_memory=OOMS, neighbours=OOMS, none="neighbours_lost bytes_that_differ")
