"""Records in words: a line per cell as it ends, and the table at the end of a sweep (Markdown)."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence

from bench.records.record import Record
from bench.records.statistics import crossover, ratio_interval
from bench.records.summary import summarise

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


def crossovers(records: Sequence[Record]) -> list[str]:
    """For each comparison over several lengths, the length from which one mechanism overtakes the other."""
    groups: dict[str, dict[int, dict[str, list[float]]]] = defaultdict(dict)
    for record in records:
        if record.status == "ok" and record.config["bench"]["name"] == "compare":
            varies = ("seq_len", "batch_size")
            setting = {key: value for key, value in record.config.items() if key not in varies}
            groups[json.dumps(setting, sort_keys=True)][record.config["seq_len"]] = record.measurements["samples"]
    return [said for samples in groups.values() for said in _overtakings(dict(sorted(samples.items())))]


def _overtakings(samples: dict[int, dict[str, list[float]]]) -> list[str]:
    baseline, *others = next(iter(samples.values()))
    said = []
    for other in others:
        of_baseline, of_other = ([by_label[label] for by_label in samples.values()] for label in (baseline, other))
        found = crossover(list(samples), of_baseline, of_other)
        if found is not None:
            winner, loser = (other, baseline) if found.faster == "b" else (baseline, other)
            said.append(f"{winner} overtakes {loser} at n = {found.length:.0f} [{found.low:.0f}, {found.high:.0f}]")
    return said


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
    if name == "sketch_error":
        return _sketch_error(record.measurements["features"], values)
    if name == "flops":
        analytic, counted, ratio = (values[key] for key in ("gflop.analytic", "gflop.counted", "flops.ratio"))
        return f"{analytic:.4g} GFLOP by formula, {counted:.4g} counted, ratio {ratio:.4g}"
    if name == "decode":
        return f"{values['decode_us_per_token']:.4g} µs per token, state {values['state_mib']:.4g} MiB"
    if name == "compare":
        baseline, *others = record.measurements["labels"]
        return ", ".join(_verdict(record.measurements["samples"], other, baseline) for other in others)
    return ", ".join(f"{key} {value:.4g}" for key, value in values.items())


def _sketch_error(features: int | None, values: dict[str, float]) -> str:
    said = [f"error {values['sketch_error.kernel']:.4g} ± {values['sketch_error.kernel_stderr']:.2g}"]
    if "sketch_error.kernel_expected" in values:
        said.append(f"expected {values['sketch_error.kernel_expected']:.4g}")
    said.append(f"before squaring {values['sketch_error.sketch']:.4g}")
    said.append(f"smallest weight {values['sketch_error.smallest_weight']:.1e}")
    return (f"r={features} " if features else "") + ", ".join(said)


def _verdict(samples: dict[str, list[float]], other: str, baseline: str) -> str:
    ratio = ratio_interval(samples[baseline], samples[other])
    return f"{other} {ratio.median:.3g}x [{ratio.low:.3g}, {ratio.high:.3g}] {baseline}: {ratio.verdict}"


def _in_table(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
