"""Records in words: a line per cell as it ends, and the table at the end of a sweep (Markdown)."""

from __future__ import annotations

from collections.abc import Sequence

from bench.record import Record
from bench.tracking import summarise

COLUMNS = ("status", "bench", "attention", "n", "batch", "result")


def line(record: Record) -> str:
    """One line about a cell that has just ended."""
    return "  ".join(cell for cell in _row(record) if cell)


def table(records: Sequence[Record]) -> str:
    """A Markdown table with one line per cell."""
    rows = [COLUMNS, *(_row(record) for record in records)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(COLUMNS))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in rows
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


def _row(record: Record) -> tuple[str, ...]:
    config = record.config
    return (
        record.status,
        config["bench"]["name"],
        config["label"],
        str(config["seq_len"]),
        str(config["batch_size"]),
        figures(record) if record.status == "ok" else _in_table(record.reason or ""),
    )


def figures(record: Record) -> str:
    """The headline figures of a cell that is ok."""
    name, values = record.config["bench"]["name"], summarise(record)
    if name == "latency":
        passes = record.measurements["passes"]
        return ", ".join(f"{key} {values[f'latency_ms.{key}']:.4g} ms" for key in passes)
    if name == "memory":
        passes = record.measurements["passes"]
        peaks = [f"{key} {values[f'peak_mib.{key}']:.4g} MiB" for key in passes]
        largest = record.measurements["largest"]
        return ", ".join([*peaks, f"largest {largest['axis']} {largest['value']}"] if largest else peaks)
    if name == "spectral_norm":
        features = record.measurements["features"]
        error = f"error {values['spectral_norm.absolute']:.4g}, relative {values['spectral_norm.relative']:.4g}"
        return (f"d={features} " if features else "") + error
    if name == "compare":
        baseline, *others = record.measurements["labels"]
        return ", ".join(_verdict(other, baseline, values) for other in others)
    return ", ".join(f"{key} {value:.4g}" for key, value in values.items())


def _verdict(other: str, baseline: str, values: dict[str, float]) -> str:
    ratio, low, high = (values[f"{key}.{other}"] for key in ("speedup", "speedup_low", "speedup_high"))
    verdict = "tie" if low <= 1 <= high else "faster" if ratio > 1 else "slower"
    return f"{other} {ratio:.3g}x [{low:.3g}, {high:.3g}] {baseline}: {verdict}"


def _in_table(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
