"""What a record says in numbers."""

from __future__ import annotations

from typing import Any

from bench import measures
from bench.records.quantities import Quantity
from bench.records.record import Record, RecordError


def quantities(record: Record) -> list[Quantity]:
    """What a record says, as its benchmark computes it from the raw samples; nothing for one that is not ok.

    Of a benchmark that is not known here: its numbers, by their dotted path.

    Raises:
        RecordError: the measurements are not in the shape that the benchmark reads.
    """
    if record.status != "ok":
        return []
    try:
        return list(benchmark(record).quantities(record.measurements))
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        name = record.config["bench"]["name"]
        raise RecordError(f"record {record.record_id}: measurements are not those of bench={name}: {error!r}") from None


def summarise(record: Record) -> dict[str, float]:
    """The numbers of one cell by their names in MLflow, such as `latency_ms.forward`; all finite."""
    return {name: number for quantity in quantities(record) for name, number in quantity.tracked().items()}


def headline(record: Record) -> str:
    """The result of an ok cell in a few words, with the papers' d where it has one."""
    size = features(record)
    words = benchmark(record).headline(quantities(record))
    return f"d={size} {words}" if size and "features" in record.measurements else words


def features(record: Record, label: str | None = None) -> int | None:
    """The papers' d of a cell's mechanism: what was measured, else what was asked for; None where it has none.

    Args:
        record: of the cell.
        label: of one mechanism of a comparison; None is the cell's own.
    """
    if "features" in record.measurements:
        size = record.measurements["features"]
        return size if isinstance(size, int) else None
    label = label or record.config["label"]
    cells = [record.config, *record.config["bench"].get("against", ())]
    attention: dict[str, Any] = next((cell["attention"] for cell in cells if cell["label"] == label), {})
    return attention.get(str(record.mechanisms.get(label, {}).get("size")))


def benchmark(record: Record) -> type[measures.Benchmark]:
    """The benchmark that measured a record."""
    return measures.find(record.config["bench"]["name"]) or measures.Benchmark
