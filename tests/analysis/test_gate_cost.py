"""What the gate costs, of cells whose seconds are known."""

import dataclasses

import pytest
from synthetic_records import config, record

from analysis.frame import tidy
from analysis.selection import MissingRecords
from analysis.tables.costs import gate_cost

BENCH = {"name": "memory", "passes": ["forward"], "memory_limit": None}


def cell(label, seq_len, check_s, status="ok"):
    peaks = {"passes": {"forward": {"peak_bytes": 2048, "baseline_bytes": 1024}}, "largest": None}
    made = record(config(label, BENCH, seq_len), peaks, status)
    return dataclasses.replace(made, duration_s=2.0, seconds={} if check_s is None else {"check": check_s})


def test_shares_of_known_seconds():
    cells = [cell("flash", 1024, 0.1), cell("performer", 1024, 0.5), cell("softmax", 1024, 0.2), cell("flash", 4096, 1)]
    cells += [cell("linformer", 4096, 1.9, "oom"), cell("informer", 4096, None)]
    short, long = gate_cost(tidy(cells)).to_dict("records")
    assert (short["n"], short["cells"], short["of"]) == (1024, 3, "performer")
    assert short["gate, median (s)"] == 0.2
    assert (short["share of the cell, median (%)"], short["largest (%)"]) == (10, 25)
    assert (long["n"], long["cells"], long["largest (%)"]) == (4096, 1, 50)


def test_records_that_do_not_say_are_not_enough():
    with pytest.raises(MissingRecords):
        gate_cost(tidy([cell("flash", 1024, None)]))
