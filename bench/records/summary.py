"""What a record says in numbers, and the records of a results folder that say what can be."""

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
    """What its benchmark is like: its `axis`, its `replicates`, and the settings of it that are `not_conditions`."""
    if record.summary:
        return record.summary
    its = benchmark(record)
    settings = [field.name for field in dataclasses.fields(its) if not field.metadata.get("condition", True)]
    return {"axis": its.axis, "replicates": its.replicates, "not_conditions": settings}


def summarised(record: Record) -> Record:
    """The record with its `summary`: `traits`, of an ok one also its `metrics` (their samples in `raw`) and `headline`.

    Raises:
        RecordError: as `quantities`.
    """
    record = dataclasses.replace(record, summary={})
    summary = traits(record)
    if record.status == "ok":
        metrics = [metric.as_json() for metric in quantities(record)]
        raw = {str(i): metric.pop("raw") for i, metric in enumerate(metrics) if "raw" in metric}
        summary |= {"headline": _headline(record).split(", "), "metrics": metrics, "raw": raw}
    return dataclasses.replace(record, summary=summary)


def quantities(record: Record) -> list[Metric]:
    """What a record says, as its benchmark computed it from the raw samples; nothing for one that is not ok.

    Of a benchmark that is not known here: its numbers, by their dotted path.

    Raises:
        RecordError: the measurements are not in the shape that the benchmark reads, say nothing, or what cannot be.
    """
    if record.status != "ok":
        return []
    try:
        if record.summary:
            metrics, raw = record.summary["metrics"], record.summary["raw"]
            samples = ({"raw": raw[str(i)]} if str(i) in raw else {} for i in range(len(metrics)))
            return [Metric.from_json(metric | its) for metric, its in zip(metrics, samples, strict=True)]
        # A number that no float holds is none, and is not worth a warning of numpy's.
        with np.errstate(over="raise", divide="raise", invalid="raise"):
            its, measured = benchmark(record), record.measurements
            if its.replicates in ("sequences", "draws"):  # how many sequences, older records leave to the config
                measured = {"sequences": record.config["batch_size"], **measured}
            computed = [
                one if one.interval is None else dataclasses.replace(one, over=its.replicates)
                for one in its.quantities(measured)
            ]
        if not computed and hasattr(its, "name"):  # one that is known
            raise ValueError("there are none")
    except Exception as error:  # of a benchmark from anywhere
        raise _unreadable(record, error) from None
    return computed


class Results(Store):
    """The records of a results folder, without those whose benchmark cannot say what they claim to have measured."""

    def decode(self, name: str) -> Record:
        """As in any store; raises as `quantities`, too."""
        record = super().decode(name)
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
    """What changed step by step in an ok cell, by name; of a long curve `most` points, the last among them.

    Raises:
        RecordError: as `quantities`.
    """
    if record.status != "ok":
        return {}
    try:
        found = benchmark(record).curves(record.measurements)
        # Thousands of points: a few of them become a `Point`.
        finite = {name: [point for point in curve if math.isfinite(point[1])] for name, curve in found.items()}
        thinned = {
            name: [
                Point(int(step), float(value)) for step, value in curve[:: -math.ceil(len(curve) / most) or -1][::-1]
            ]
            for name, curve in finite.items()
        }
    except Exception as error:  # of a benchmark from anywhere
        raise _unreadable(record, error) from None
    return {name: curve for name, curve in thinned.items() if curve}


def headline(record: Record) -> str:
    """The result of an ok cell in a few words, with the papers' d where it has one.

    Raises:
        RecordError: as `quantities`.
    """
    size = features(record)
    # In parts, because a reader of records cuts long texts.
    words = ", ".join(record.summary["headline"]) if "headline" in record.summary else _headline(record)
    return f"d={size} {words}" if size and "features" in record.measurements else words


def _headline(record: Record) -> str:
    metrics = quantities(record)
    try:
        return benchmark(record).headline(metrics)
    except Exception as error:  # of a benchmark from anywhere
        raise _unreadable(record, error) from None


def features(record: Record, label: str | None = None) -> int | None:
    """The papers' d of a cell's mechanism: what was measured, else what was asked for; None where it has none.

    Args:
        record: of the cell.
        label: of one mechanism of a comparison; None is the cell's own.
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
    """The benchmark that measured a record. It is imported, and with it torch, where a record has no `summary`."""
    from bench import measures

    return measures.find(record.config["bench"]["name"]) or measures.Benchmark
