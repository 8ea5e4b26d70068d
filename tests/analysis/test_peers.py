"""The table of peers: ratios of the same rounds, and the peaks of the same conditions."""

import dataclasses

import numpy as np
import pytest
from synthetic_records import compare, memory

from analysis.frame import tidy
from analysis.selection import MissingRecords
from analysis.tables.peers import COUNTERPARTS, peers
from attention_zoo import list_attentions

PAIR = ("performer", "lucidrains_performer")


def test_the_speed_is_that_of_the_same_rounds(rng):
    """Twice as slow by the synthetic model, whatever the machine did in between."""
    record = compare(PAIR, 1024, rng)
    (row,) = peers(tidy([record])).to_dict("records")
    samples = record.measurements["samples"]
    assert (row["attention"], row["peer"], row["seq_len"]) == (*PAIR, 1024)
    np.testing.assert_allclose(row["speed"], np.median(np.divide(samples[PAIR[1]], samples[PAIR[0]])))
    assert row["low"] < row["speed"] < row["high"] and row["verdict"] == "faster"
    assert np.isnan(row["mib"]) and np.isnan(row["peer_mib"])


def test_the_order_in_the_cell_and_others_in_it_change_nothing(rng):
    record = compare(PAIR, 1024, rng)
    turned = compare(("flash", *PAIR[::-1]), 1024, rng)
    samples = {**turned.measurements["samples"], **record.measurements["samples"]}
    turned = dataclasses.replace(turned, measurements={**turned.measurements, "samples": samples})
    columns = ["attention", "peer", "speed", "low", "high"]
    assert peers(tidy([record]))[columns].equals(peers(tidy([turned]))[columns])


def test_the_newest_of_equal_comparisons_counts(rng):
    older, newer = (
        dataclasses.replace(compare(PAIR, 1024, rng), ended=f"2026-01-0{day}T00:00:00+00:00") for day in (1, 2)
    )
    newer = dataclasses.replace(newer, record_id=older.record_id[:-1] + "f", cell_id=older.cell_id[:-1] + "f")
    assert peers(tidy([newer, older])).equals(peers(tidy([newer])))


def test_peaks_are_those_of_the_same_length_pass_and_batch(rng):
    records = [memory(name, n) for name in PAIR for n in (1024, 2048)]
    (row,) = peers(tidy([compare(PAIR, 1024, rng), *records])).to_dict("records")
    expected = [record.measurements["passes"]["forward"]["peak_bytes"] / 2**20 for record in records[::2]]
    assert [row["mib"], row["peer_mib"]] == expected
    (other,) = peers(tidy([compare(PAIR, 1024, rng, batch_size=3), *records])).to_dict("records")
    assert np.isnan(other["mib"])


def test_without_a_pair_it_says_what_it_needs(rng):
    with pytest.raises(MissingRecords, match="peer"):
        peers(tidy([compare(("flash", "performer"), 1024, rng)]))


def test_every_peer_of_the_zoo_has_a_counterpart():
    named = {name.removesuffix("_5") for name in COUNTERPARTS}
    assert named == {name for name in list_attentions() if name.startswith("lucidrains_")}
