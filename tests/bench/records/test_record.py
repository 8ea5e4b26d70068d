"""Records: strict on the way in and out, never torn, the newest outcome stands."""

import dataclasses
import json

import pytest

from bench.records.record import Record, RecordError
from bench.records.store import Store, latest

FINE = Record(
    record_id="0" * 32,
    cell_id="c" * 64,
    sweep_id="s" * 16,
    attempt=1,
    status="ok",
    config={"label": "flash"},
    started="2026-01-01T00:00:00+00:00",
    ended="2026-01-01T00:00:01+00:00",
    duration_s=1.0,
    measurements={"samples": [1.5, 2.5]},
)


def changed(**fields):
    return dataclasses.replace(FINE, **fields)


def test_round_trip(tmp_path):
    store = Store(tmp_path)
    store.write(FINE)
    assert store.load() == [FINE]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_non_finite_numbers_are_refused_both_ways(value):
    with pytest.raises(ValueError):
        changed(measurements={"samples": [value]}).to_json()
    text = FINE.to_json().replace("2.5", json.dumps(value))
    with pytest.raises(RecordError, match="not JSON"):
        Record.from_json(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not strict JSON"),
        ("[]", "not a JSON object"),
        ("{}", "schema"),
        (FINE.to_json().replace('"schema": 1', '"schema": 2'), "schema=2"),
        (FINE.to_json().replace('"phase"', '"fase"'), "unknown fields"),
        (FINE.to_json().replace('"status": "ok"', '"status": "fine"'), "status='fine'"),
        (FINE.to_json().replace('"status": "ok"', '"status": "oom"'), "carries no measurements"),
    ],
)
def test_what_is_no_record_is_refused(text, said):
    with pytest.raises(RecordError, match=said):
        Record.from_json(text)


def test_a_truncated_file_is_named_and_costs_no_other(tmp_path, capsys):
    store = Store(tmp_path)
    store.write(FINE)
    other = store.write(changed(record_id="1" * 32))
    whole = other.read_text()
    for length in range(0, len(whole) - 2, max(1, len(whole) // 50)):
        other.write_text(whole[:length])
        assert store.load() == [FINE]
        assert capsys.readouterr().err.startswith(f"{other}: skipped, ")


def test_the_newest_outcome_stands_and_a_failed_attempt_replaces_none():
    ok, later = changed(), changed(record_id="1", ended="2026-01-02T00:00:00+00:00")
    crash = changed(record_id="2", status="crash", measurements={}, ended="2026-01-03T00:00:00+00:00")
    assert latest([ok, later])["c" * 64] is later
    assert latest([ok, crash])["c" * 64] is ok
    assert latest([crash, ok])["c" * 64] is ok
    assert latest([crash])["c" * 64] is crash
