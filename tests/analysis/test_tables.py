"""Tables that belong to no figure: of the gate, of peers, and Tables 2 and 3 of Skeinformer."""

import numpy as np
import pytest
from drawn import changed
from synthetic_records import compare, config, flops, largest_batch, memory, record

from analysis.frame import tidy
from analysis.selection import MissingRecords
from analysis.tables import costs
from analysis.tables.costs import gate_cost
from analysis.tables.peers import COUNTERPARTS, peers
from attention_zoo import list_attentions

BENCH = {"name": "memory", "passes": ["forward"], "memory_limit": None}


def cell(label, seq_len, check_s, status="ok"):
    peaks = {"passes": {"forward": {"peak_bytes": 2048, "baseline_bytes": 1024}}, "largest": None}
    made = record(config(label, BENCH, seq_len), peaks, status)
    return changed(made, duration_s=2.0, seconds={} if check_s is None else {"check": check_s})


def test_shares_of_known_seconds():
    cells = [cell("flash", 1024, 0.1), cell("performer", 1024, 0.5), cell("softmax", 1024, 0.2), cell("flash", 4096, 1)]
    cells += [cell("linformer", 4096, 1.9, "oom"), cell("informer", 4096, None)]
    short, long = gate_cost(tidy(cells)).to_dict("records")
    assert (short["n"], short["cells"], short["of"]) == (1024, 3, "performer")
    assert short["gate, median (s)"] == 0.2
    assert (short["share of the cell, median (%)"], short["largest (%)"]) == (10, 25)
    assert (long["n"], long["cells"], long["largest (%)"]) == (4096, 1, 50)
    with pytest.raises(MissingRecords):
        gate_cost(tidy([cell("flash", 1024, None)]))


PAIR = ("performer", "lucidrains_performer")


def test_the_speed_is_that_of_the_same_rounds_whatever_else_is_in_the_cell(rng):
    """Twice as slow by the synthetic model, whatever the machine did in between; the newest comparison counts."""
    record = compare(PAIR, 1024, rng)
    samples = record.measurements["samples"]
    (row,) = peers(tidy([record])).to_dict("records")
    assert (row["attention"], row["peer"], row["seq_len"]) == (*PAIR, 1024)
    np.testing.assert_allclose(row["speed"], np.median(np.divide(samples[PAIR[1]], samples[PAIR[0]])))
    assert row["low"] < row["speed"] < row["high"] and row["verdict"] == "faster"
    assert np.isnan(row["mib"]) and np.isnan(row["peer_mib"])
    turned = compare(("flash", *PAIR[::-1]), 1024, rng)
    turned = changed(turned, measurements={"samples": {**turned.measurements["samples"], **samples}})
    older = changed(compare(PAIR, 1024, rng), cell_id="f" * 64, ended="2025-02-01T00:00:00+00:00")
    columns = ["attention", "peer", "speed", "low", "high"]
    assert peers(tidy([record]))[columns].equals(peers(tidy([turned, older]))[columns])


def test_peaks_are_those_of_the_same_length_pass_and_batch(rng):
    records = [memory(name, n) for name in PAIR for n in (1024, 2048)]
    (row,) = peers(tidy([compare(PAIR, 1024, rng), *records])).to_dict("records")
    expected = [record.measurements["passes"]["forward"]["peak_bytes"] / 2**20 for record in records[::2]]
    assert [row["mib"], row["peer_mib"]] == expected
    (other,) = peers(tidy([compare(PAIR, 1024, rng, batch_size=3), *records])).to_dict("records")
    assert np.isnan(other["mib"])
    elsewhere = [changed(one, machine={**one.machine, "cpu_model": "another"}) for one in records]
    (other,) = peers(tidy([compare(PAIR, 1024, rng), *elsewhere])).to_dict("records")
    assert np.isnan(other["mib"]), "a peak of another machine"
    with pytest.raises(MissingRecords, match="peer"):
        peers(tidy([compare(("flash", "performer"), 1024, rng)]))


def test_every_peer_of_the_zoo_has_a_counterpart():
    named = {name.removesuffix("_5") for name in COUNTERPARTS}
    assert named == {name for name in list_attentions() if name.startswith("lucidrains_")}


def test_table_3_has_the_papers_terms_beside_ours(rng):
    sizes = {"num_features": 256}
    measured = [
        flops("skeinformer", 2048, 5 * 2048 * 256 * 32, 256, attention={"name": "skeinformer", **sizes}),
        flops("softmax", 1024, 2 * 1024**2 * 32, attention={"name": "softmax"}),
        flops("performer", 1024, 1000, 64, attention={"name": "performer", "num_features": 64}),
        flops("informer", 1024, 1000, 256, attention={"name": "informer", **sizes}, head_dim=64),
        flops("v_mean", 1024, 1000, attention={"name": "v_mean"}),
    ]
    table = costs.multiplications(tidy(measured))
    assert table["method"].tolist() == ["Standard", "Skeinformer"], "of the paper's size, in the paper's order"
    assert table["paper (M)"].tolist() == [2 * 1024**2 * 32 / 1e6, 4 * 2048 * 256 * 32 / 1e6]
    assert table["ours / paper"].tolist() == [1, 1.25]
    assert table["counted (M)"].tolist() == pytest.approx([ours + 1e-6 for ours in table["ours (M)"]])
    assert (table["what ours counts"].str.len() > 0).all()
    with pytest.raises(MissingRecords, match="head_dim=32, d=256"):
        costs.multiplications(tidy(measured[2:]))


def test_table_2_has_our_batches_at_one_limit_beside_the_papers():
    softmax, flash = (largest_batch(label, 1024) for label in ("softmax", "flash"))
    other = changed(largest_batch("v_mean", 1024), measurements={"limit_bytes": 1}, ended="2025-01-01T00:00:00")
    failed = largest_batch("softmax", 2048, "oom")
    unbound = changed(largest_batch("flash", 2048), measurements={"limit_bytes": None})
    deeper = largest_batch("performer", 1024, layers=12)
    table = costs.largest_batches(tidy([softmax, flash, other, failed, unbound, deeper])).set_index("attention")
    limit = softmax.measurements["limit_bytes"] / 2**30
    assert list(table)[:3] == [f"n = 1024, {limit:.3g} GiB", "n = 2048", "Skeinformer, Text"]
    assert table.loc["softmax"].tolist()[:3] == ["3", "oom", 8] and table.loc["softmax", "Skeinformer, Image"] == 32
    assert table.loc["flash"].tolist()[:2] == ["3", "3"] and table.loc["flash"].isna().sum() == 5
    assert {"v_mean", "performer"}.isdisjoint(table.index)
    with pytest.raises(MissingRecords, match="bench=largest_batch"):
        costs.largest_batches(tidy([failed]))
