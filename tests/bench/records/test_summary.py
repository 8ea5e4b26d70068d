"""A record says what its benchmark says of it, so that reading it needs neither the benchmark nor torch."""

import dataclasses
import json

import numpy as np
import pytest
from command import python
from synthetic_everything import everything
from synthetic_records import spectral, written

from bench import measures
from bench.records.record import RecordError
from bench.records.store import READABLE, decode, encode
from bench.records.summary import headline, quantities, summarised, traits

# Of each benchmark one of every end, with all that it may have measured beside.
KINDS = {(record.config["bench"]["name"], record.status, len(record.measurements)): record for record in everything()}
OK = next(record for (_, status, _), record in KINDS.items() if status == "ok")


def reread(record):
    data, samples = encode(record)
    return decode(record.file_name, data, lambda: samples)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_record_reads_back_as_its_benchmark_says(kind):
    record = KINDS[kind]
    older = dataclasses.replace(record, summary={})
    newer = reread(summarised(older))
    assert newer.measurements == older.measurements and newer.summary
    assert {**traits(newer), **traits(older)} == newer.summary
    assert headline(newer) == headline(older) if record.status == "ok" else newer.summary == traits(older)
    for ours, theirs in zip(quantities(newer), quantities(older), strict=True):
        np.testing.assert_equal(dataclasses.asdict(ours), dataclasses.asdict(theirs))


def test_an_error_says_what_it_is_relative_to_unless_that_is_softmax():
    rng = np.random.default_rng(0)
    softmax, polynomial = (spectral("performer", 512, 32, rng, reference=of) for of in ("softmax", "polynomial"))
    assert headline(polynomial).endswith(" of polynomial") and headline(softmax)[-1].isdigit()


def test_numbers_that_json_has_not_read_back():
    record = next(record for (name, *_), record in KINDS.items() if name == "train")
    measured = {**record.measurements, "test": {**record.measurements["test"], "loss": 690.0}}
    newer = reread(summarised(dataclasses.replace(record, measurements=measured, summary={})))
    perplexity = next(one for one in quantities(newer) if one.metric == "perplexity")
    assert perplexity.value == pytest.approx(np.exp(690.0)) and np.isnan(perplexity.low)


def test_losses_where_nothing_is_asked_are_stored_once():
    """Null in the measurements, and the summary names their place."""
    record = next(record for (name, *_), record in KINDS.items() if name == "train")
    losses = record.measurements["test"]["loss_by_position"]
    assert losses[0] is None and len(losses) > READABLE
    assert "test/loss_by_position" in json.loads(encode(summarised(record))[1])["summary."]["raw"].values()


READING = """
import sys
from analysis.frame import load
from bench.records.store import Store
from bench.records.summary import summarise
from bench.records.table import crossovers, table
for folder in sys.argv[1:]:
    frame, records = load(folder), Store(folder).load()
    table(records), crossovers(records), [summarise(record) for record in records]
    loaded = [name for name in ("torch", "hydra", "omegaconf", "mlflow") if name in sys.modules]
    print(sorted(set(frame["bench"])), loaded)
"""


def test_reading_records_needs_no_torch_but_for_older_ones(tmp_path):
    newer = written(tmp_path / "newer", map(summarised, KINDS.values()))
    older = written(tmp_path / "older", KINDS.values())
    done = python("-c", READING, newer, older)
    assert done.stdout == "".join(f"{measures.list_benchmarks()} {loads}\n" for loads in ([], ["torch"]))


@pytest.mark.parametrize("harm", [{"metrics": None}, {"metrics": [{}]}, {"raw": None}, {"metrics": [{"metric": 3}]}])
def test_metrics_that_are_none_are_named(harm):
    record = summarised(OK)
    with pytest.raises(RecordError, match="measurements are not those of"):
        quantities(reread(dataclasses.replace(record, summary=record.summary | harm)))


@pytest.mark.parametrize("harm", [{"axis": None}, {"replicates": 3}, {"not_conditions": "all"}, {"headline": "fast"}])
def test_a_summary_that_is_none_is_no_record(harm):
    record = summarised(OK)
    with pytest.raises(RecordError, match=f"summary.{next(iter(harm))}="):
        reread(dataclasses.replace(record, summary=record.summary | harm))
