"""Mechanisms that misbehave: each ends its own cell only, with a status and a line that say how."""

import re

import pytest
from aftermath import Sweep, lines
from misbehaving import AGAINST_THE_SWEEP, FINE, KINDS, STAGES, names

pytestmark = pytest.mark.faults

TIMEOUT_S = 6
SETTINGS = [f"timeout={TIMEOUT_S}", "bench.passes=[forward_backward]", "bench.memory_limit=0.3", "repeats=1"]
LONGEST_REASON = 1000


def among_good_ones(odd):
    """A list with well-behaved mechanisms between the others, at its beginning and at its end."""
    every = -(-len(odd) // (FINE - 1))
    mixed = list(odd)
    for number in reversed(range(FINE - 1)):
        mixed.insert(number * every, f"odd_fine_{number}")
    return [*mixed, f"odd_fine_{FINE - 1}"]


def mistake(record, statuses, reason):
    """What is not as it should be about a record, if anything."""
    if record is None:
        return "has no record"
    if record.status not in statuses.split():
        return f"{record.status} instead of {statuses}: {record.reason}"
    if record.status == "ok":
        return None
    if not (record.reason and re.search(reason, record.reason)):
        return f"{record.reason!r} does not say {reason!r}"
    if len(record.reason) > LONGEST_REASON or not record.reason.isprintable():
        return f"{record.reason[:100]!r} is no line to print"
    return None


@pytest.mark.parametrize("stage", STAGES)
def test_a_mechanism_that_misbehaves_ends_its_own_cell_only(tmp_path, stage, promise):
    """A mechanism that misbehaves in its `__init__`, forward or backward ends its own cell only, with a status and a
    line that say how; its neighbours are `ok`, what it started is gone
    """
    odd = names(stage)
    attentions = among_good_ones(odd)
    sweep = Sweep(tmp_path, *SETTINGS, cells=len(attentions), attention=",".join(attentions))
    result = sweep.run()
    records = {record.config["label"]: record for record in sweep.records()}
    mistakes = {kind: mistake(records.get(name), KINDS[kind][1][stage], KINDS[kind][2]) for name, kind in odd.items()}
    assert {kind: said for kind, said in mistakes.items() if said} == {}, result.stderr[-3000:]
    assert {records[name].status for name in attentions if name not in odd} == {"ok"}
    assert len(sweep.records()) == len(attentions)
    assert result.returncode == 1 and "Traceback" not in result.stderr
    for name, record in records.items():
        assert re.search(rf"^\| {record.status} .*\| {name} ", result.stdout, re.MULTILINE)
        assert any(line.startswith(record.status) and f" {name} " in line for line in lines(result.stderr))
    assert sweep.leftovers() == []
    sweep.wait_for_orphans()
    promise(mechanisms=len(odd), neighbours=FINE, none="wrong_endings neighbours_lost orphans")


@pytest.mark.parametrize("kind", AGAINST_THE_SWEEP)
def test_a_mechanism_that_goes_for_the_sweep_ends_its_own_cell_only(tmp_path, kind, promise):
    """A mechanism that kills or stops its parent, or deletes its directories, ends its own cell only"""
    attention = f"odd_fine_0,odd_{kind},odd_fine_1"
    sweep = Sweep(tmp_path, f"timeout={TIMEOUT_S}", cells=3, attention=attention)
    result = sweep.run(ODD_RESULTS=str(sweep.results), timeout=100)
    statuses = {record.config["label"]: record.status for record in sweep.records()}
    assert result.returncode in (0, 1) and "Traceback" not in result.stderr, result.stderr
    assert len(statuses) == 3 and statuses["odd_fine_0"] == statuses["odd_fine_1"] == "ok", result.stderr
    assert sweep.leftovers() == []
    sweep.wait_for_orphans()
    promise(mechanisms=1, neighbours=2, neighbours_lost=0)
