"""A record's results in numbers and words, and the store of records whose results can be read."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.common.errors import one_line
from bench.records.metrics import Metric, Point
from bench.records.record import Record, RecordError
from bench.records.store import Store

if TYPE_CHECKING:
    from bench.measures import Benchmark


def traits(record: Record) -> dict[str, Any]:
    """Properties of the record's benchmark: `axis`, `replicates`, and its settings that are `not_conditions`."""
    if record.summary:
        return record.summary
    its = benchmark(record)
    settings = [field.name for field in dataclasses.fields(its) if not field.metadata.get("condition", True)]
    return {"axis": its.axis, "replicates": its.replicates, "not_conditions": settings}


def summarised(record: Record) -> Record:
    """The record with its `summary`: `traits` and, if ok, also its `metrics` (samples in `raw`) and `headline`.

    Raises:
        RecordError: as in `quantities`.
    """
    record = dataclasses.replace(record, summary={})
    computed = quantities(record)  # first: it says so where the benchmark cannot be had
    summary = traits(record)
    if record.status == "ok":
        metrics = [metric.as_json() for metric in computed]
        raw = {str(i): metric.pop("raw") for i, metric in enumerate(metrics) if "raw" in metric}
        summary |= {"headline": _headline(record).split(", "), "metrics": metrics, "raw": raw}
    return dataclasses.replace(record, summary=summary)


def quantities(record: Record) -> list[Metric]:
    """A record's metrics, as its benchmark computed them from the raw samples; empty if the record is not ok.

    For an unknown benchmark: all numbers, named by their dotted path.

    Raises:
        RecordError: the measurements do not have the benchmark's shape, are empty, or are impossible.
    """
    if record.status != "ok":
        return []
    try:
        if record.summary:
            metrics, raw = record.summary["metrics"], record.summary["raw"]
            samples = ({"raw": raw[str(i)]} if str(i) in raw else {} for i in range(len(metrics)))
            return [Metric.from_json(metric | its) for metric, its in zip(metrics, samples, strict=True)]
        # A result that overflows is not a number, and no numpy warning should be printed for it.
        with np.errstate(over="raise", divide="raise", invalid="raise"):
            its, measured = benchmark(record), record.measurements
            if its.replicates in ("sequences", "draws"):  # older records have their number in the config only
                measured = {"sequences": record.config["batch_size"], **measured}
            found, over = its.quantities(measured), its.replicates
            computed = [one if one.interval is None else dataclasses.replace(one, over=over) for one in found]
        if not computed and hasattr(its, "name"):  # a known benchmark
            raise ValueError("there are none")
    except Exception as error:  # a user's benchmark may raise anything
        raise _unreadable(record, error) from None
    return computed


class Results(Store):
    """The records of a results folder, without those whose measurements their benchmark cannot read."""

    def decode(self, name: str) -> Record:
        """As in `Store`, with a `summary` where older ok records have none; also raises like `quantities`."""
        record = super().decode(name)
        if record.status == "ok" and not record.summary:
            return summarised(record)
        quantities(record)
        return record


def _unreadable(record: Record, error: Exception) -> RecordError:
    what = f"{type(error).__name__}: {one_line(error)}"
    name = record.config["bench"]["name"]
    return RecordError(f"{record.file_name}: measurements are not those of bench={name}: {what}")


def summarise(record: Record) -> dict[str, float]:
    """The numbers of one cell by their names in MLflow, such as `latency_ms.forward`; all finite."""
    return {name: number for quantity in quantities(record) for name, number in quantity.tracked().items()}


def curves(record: Record, most: int) -> dict[str, list[Point]]:
    """Values by step of an ok cell, by name; a long curve is thinned to `most` points, always with the last one.

    Raises:
        RecordError: as in `quantities`.
    """
    if record.status != "ok":
        return {}
    try:
        found = benchmark(record).curves(record.measurements)
        # Curves may have thousands of points: thin them before building `Point`s.
        finite = {name: [point for point in curve if math.isfinite(point[1])] for name, curve in found.items()}
        thinned = {}
        for name, curve in finite.items():
            kept = curve[:: -math.ceil(len(curve) / most) or -1][::-1]
            thinned[name] = [Point(int(step), float(value)) for step, value in kept]
    except Exception as error:  # a user's benchmark may raise anything
        raise _unreadable(record, error) from None
    return {name: curve for name, curve in thinned.items() if curve}


def headline(record: Record) -> str:
    """The result of an ok cell in a few words, with the papers' d if it has one, and what an error is relative to.

    Raises:
        RecordError: as in `quantities`.
    """
    size, reference = features(record), record.measurements.get("reference")
    # Stored in parts, since reading a record shortens long texts.
    words = ", ".join(record.summary["headline"]) if "headline" in record.summary else _headline(record)
    # Errors of different functions do not compare; most are of softmax.
    words += f" of {reference}" if isinstance(reference, str) and reference != "softmax" else ""
    return f"d={size} {words}" if size and "features" in record.measurements else words


def _headline(record: Record) -> str:
    metrics = quantities(record)
    try:
        return benchmark(record).headline(metrics)
    except Exception as error:  # a user's benchmark may raise anything
        raise _unreadable(record, error) from None


def features(record: Record, label: str | None = None) -> int | None:
    """The papers' d of a cell's mechanism: as measured, else as configured; None if it has none.

    Args:
        record: the cell's record.
        label: a mechanism of a comparison; None: the cell's own.
    """
    if "features" in record.measurements:
        return _size(record.measurements["features"])
    label = label or record.config["label"]
    cells = [record.config, *record.config["bench"].get("against", ())]
    attention: dict[str, Any] = next((cell["attention"] for cell in cells if cell["label"] == label), {})
    return _size(attention.get(str(record.mechanisms.get(label, {}).get("size"))))


def _size(value: Any) -> int | None:
    return value if type(value) is int and 0 < value < 2**63 else None


def benchmark(record: Record) -> type[Benchmark]:
    """The benchmark class of a record. Only needed without `summary`, since it imports the benchmark and torch."""
    from bench import measures

    return measures.find(record.config["bench"]["name"]) or measures.Benchmark
