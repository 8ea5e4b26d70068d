"""What a record says in numbers: figures of merit computed from raw samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from bench.records.record import Record
from bench.records.statistics import ratio_interval, root_mean_square, standard_error


def summarise(record: Record) -> dict[str, float]:
    """The figures of merit of one cell by name, computed from its raw samples; all finite.

    Empty for a record that is not ok. Names are `<quantity>_<unit>.<pass or label>`:

    - latency: `latency_ms.forward` (median), `latency_us_per_token.forward`, `spread_pct.forward`
      (interquartile range over median), `tflop_per_s.forward`
    - memory: `peak_mib.forward` (over inputs and parameters), `largest.seq_len`
    - spectral_norm: `spectral_norm.relative` (mean over trials and heads), `spectral_norm.relative_stderr`;
      `absolute` and `exact_norm` likewise
    - compare: `speedup.<label>` over the baseline (median over rounds), `speedup_low.<label>` and
      `speedup_high.<label>` (its 95 % interval)
    - sketch_error: `sketch_error.kernel` and `sketch_error.sketch` (root mean square over trials and heads),
      `..._stderr`, `..._expected` where it is known; `sketch_error.smallest_weight`, `sketch_error.negative_share`
    - flops: `gflop.analytic`, `gflop.counted`, `flops.ratio` of the first to the second
    - decode: `decode_us_per_token` (median time of a step), `spread_pct.decode`, `state_mib`
    - any other benchmark: its numbers, by their dotted path.
    """
    if record.status != "ok":
        return {}
    compute = _SUMMARIES.get(record.config.get("bench", {}).get("name"), flatten)
    numbers = {
        name: float(value)
        for name, value in compute(record.measurements).items()
        if isinstance(value, (int, float)) and not isinstance(value, bool)
    }
    return {name: value for name, value in numbers.items() if math.isfinite(value)}


def _latency(measured: Mapping[str, Any]) -> dict[str, float]:
    summary = {}
    for name, timed in measured["passes"].items():
        lower, median_ns, upper = np.percentile(timed["samples"], [25, 50, 75])
        summary[f"latency_ms.{name}"] = median_ns / 1e6
        summary[f"spread_pct.{name}"] = 100 * (upper - lower) / median_ns
        summary[f"latency_us_per_token.{name}"] = median_ns / 1e3 / measured["tokens"]
        if name == "forward":
            summary["tflop_per_s.forward"] = measured["flops"] / median_ns / 1e3
    return summary


def _memory(measured: Mapping[str, Any]) -> dict[str, float]:
    summary = {f"peak_mib.{name}": peak["peak_bytes"] / 2**20 for name, peak in measured["passes"].items()}
    if largest := measured.get("largest"):
        summary[f"largest.{largest['axis']}"] = largest["value"]
    return summary


def _spectral_norm(measured: Mapping[str, Any]) -> dict[str, float]:
    summary = {}
    for name in ("absolute", "relative", "exact_norm"):
        norms = np.ravel(measured[name])
        summary[f"spectral_norm.{name}"] = float(norms.mean())
        summary[f"spectral_norm.{name}_stderr"] = standard_error(norms)
    return summary


def _compare(measured: Mapping[str, Any]) -> dict[str, float]:
    summary = {}
    baseline, *others = measured["labels"]
    for label in others:
        ratio = ratio_interval(measured["samples"][baseline], measured["samples"][label])
        summary[f"speedup.{label}"] = ratio.median
        summary[f"speedup_low.{label}"], summary[f"speedup_high.{label}"] = ratio.low, ratio.high
    return summary


def _sketch_error(measured: Mapping[str, Any]) -> dict[str, Any]:
    summary: dict[str, Any] = {"sketch_error.smallest_weight": float(np.min(measured["smallest_weight"]))}
    if measured["negative_share"] is not None:
        summary["sketch_error.negative_share"] = float(np.mean(measured["negative_share"]))
    for name in ("kernel", "sketch"):
        error = root_mean_square(measured[f"{name}_error"])
        summary[f"sketch_error.{name}"], summary[f"sketch_error.{name}_stderr"] = error.value, error.error
        if measured[f"{name}_expected"] is not None:
            summary[f"sketch_error.{name}_expected"] = root_mean_square(measured[f"{name}_expected"]).value
    return summary


def _flops(measured: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "gflop.analytic": measured["analytic"] / 1e9,
        "gflop.counted": measured["counted"] / 1e9,
        "flops.ratio": measured["analytic"] / measured["counted"],
    }


def _decode(measured: Mapping[str, Any]) -> dict[str, float]:
    lower, median_ns, upper = np.percentile(measured["samples"], [25, 50, 75])
    return {
        "decode_us_per_token": median_ns / 1e3,
        "spread_pct.decode": 100 * (upper - lower) / median_ns,
        "state_mib": measured["state_bytes"] / 2**20,
    }


_SUMMARIES: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "latency": _latency,
    "memory": _memory,
    "spectral_norm": _spectral_norm,
    "compare": _compare,
    "decode": _decode,
    "sketch_error": _sketch_error,
    "flops": _flops,
}


def flatten(nested: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Leaves of nested mappings by their dotted path: `{"a": {"b": 1}}` -> `{"a.b": 1}`."""
    leaves: dict[str, Any] = {}
    for key, value in nested.items():
        if isinstance(value, Mapping):
            leaves.update(flatten(value, f"{prefix}{key}."))
        else:
            leaves[f"{prefix}{key}"] = value
    return leaves
