"""Records -> one tidy DataFrame: one row per cell, metric and pass, with raw samples and their interval."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from bench.records.record import Record
from bench.records.statistics import median_interval, ratio_interval, root_mean_square, standard_error
from bench.records.store import Store, latest

Row = dict[str, Any]

COLUMNS = (
    "bench",  # what was measured
    "attention",  # the label: the mechanism as a paper's table names it
    "mechanism",
    "function",  # that its output is or estimates: softmax, polynomial, or itself
    "hyperparameters",  # JSON
    "baseline",  # of a ratio: the label it is relative to
    "metric",
    "pass",  # forward, backward, forward_backward
    "value",  # NaN for a cell that is not ok
    "low",
    "high",
    "interval",  # what low and high are: "95%" or "standard error"
    "samples",  # how many
    "unit",
    "verdict",  # of a ratio: faster, slower or tie
    "raw",  # the samples themselves: a numpy array, for a ratio the ratio of each round
    "status",
    "reason",
    "reference",  # of an error: the function that is approximated
    "features",  # the papers' d: columns, rows, projection dimension, landmarks; missing where there is none
    "seq_len",
    "batch_size",
    "tokens",  # batch_size * seq_len
    "num_heads",
    "head_dim",
    "dtype",
    "causal",
    "inputs",
    "weights",  # of pretrained inputs: initialised or pretrained
    "input_settings",  # JSON
    "impl",
    "seed",
    "settings",  # JSON: what else determines the measurement
    "device",
    "device_name",
    "cpu_model",
    "cpu_count",
    "threads",
    "torch",
    "ended",
    "cell_id",
    "record_id",
    "sweep_id",
)

# The hyperparameters that a paper's "number of features d" can mean.
SIZES = ("num_features", "num_samples", "projection_dim", "num_landmarks", "sketch_size")

# Keys of a config that have columns of their own, or that do not change what is measured, only how well.
_NOT_SETTINGS = frozenset(COLUMNS) | {
    "grids",
    "label",
    "repeats",
    "rerun",
    "results_dir",
    "size",
    "timeout",
    "tokens_per_batch",
    "tracking",
}
_NOT_BENCH_SETTINGS = {
    "against",
    "largest",
    "largest_limit",
    "measured_pass",
    "memory_limit",
    "min_sample_ms",
    "name",
    "num_features",
    "passes",
}

# Conditions that must agree between cells shown side by side.
CONDITIONS = (
    "num_heads",
    "head_dim",
    "dtype",
    "causal",
    "inputs",
    "weights",
    "input_settings",
    "seed",
    "settings",
    "device",
    "device_name",
    "cpu_model",
    "threads",
    "torch",
)
# A cell that did not get to measure may not know them.
_KNOWN_ONCE_MEASURED = {"device_name", "cpu_model", "threads", "torch"}


class MissingRecords(ValueError):
    """The records do not suffice for what was asked; the message says what is missing."""


def load(results_dir: str | Path, cell_ids: Collection[str] | None = None) -> pd.DataFrame:
    """The standing record of every cell (or of those named) under `results_dir` as a tidy frame.

    Raises:
        MissingRecords: there are none.
    """
    standing = latest(Store(results_dir).load())
    chosen = [record for cell_id, record in standing.items() if cell_ids is None or cell_id in cell_ids]
    if not chosen:
        which = "" if cell_ids is None else f" of the {len(cell_ids)} cells asked for"
        raise MissingRecords(f"results_dir={results_dir}: holds no records{which}; `python -m bench` writes them")
    return tidy(chosen)


def tidy(records: Iterable[Record]) -> pd.DataFrame:
    """The columns of `COLUMNS`, one row per cell, metric and pass (and per candidate of a comparison).

    A cell that is not ok has a row too, with its status, its reason and no metric; so has an ok cell of a
    benchmark that is not known here. Times are medians in ns with a 95 % bootstrap interval, norms are
    means with their standard error.
    """
    frame = pd.DataFrame([row for record in records for row in _rows(record)], columns=list(COLUMNS))
    numbers = {name: "float64" for name in ("value", "low", "high")}
    counts = {name: "Int64" for name in ("samples", "features", "cpu_count", "threads")}
    return frame.astype(numbers | counts)


def series(frame: pd.DataFrame, apart_from: Collection[str] = ()) -> pd.Series:
    """A name for each row that tells apart what a figure must not mix.

    The label, followed by the hyperparameters (and `impl`) that differ between the frame's cells of that
    label.
    """
    settings = [
        {k: v for k, v in json.loads(text).items() if k not in apart_from} | {"impl": impl}
        for text, impl in zip(frame["hyperparameters"], frame["impl"], strict=True)
    ]
    by_label: dict[str, dict[str, set[str]]] = {}
    for label, values in zip(frame["attention"], settings, strict=True):
        for key, value in values.items():
            by_label.setdefault(label, {}).setdefault(key, set()).add(json.dumps(value))
    names = []
    for label, values in zip(frame["attention"], settings, strict=True):
        differing = [f"{k}={v}" for k, v in values.items() if len(by_label[label][k]) > 1]
        names.append(" ".join([label, *differing]))
    return pd.Series(names, index=frame.index, name="series")


def settle(frame: pd.DataFrame, facets: Collection[str] = ()) -> tuple[pd.DataFrame, list[str]]:
    """Keep the cells measured under one set of conditions, the most frequent, and say what was left out.

    The conditions are `CONDITIONS` without `facets`, and the batch size, or the tokens per batch where
    those vary less. Cells that are not ok stay where nothing known of them contradicts.

    Returns:
        The rows kept, and a sentence where conditions had other values.

    Raises:
        MissingRecords: no cell of the frame is ok.
    """
    measured = frame[frame["status"] == "ok"]
    if measured.empty:
        raise MissingRecords("no cell ended ok")
    batch = min(("batch_size", "tokens"), key=lambda name: measured[name].nunique())
    conditions = [name for name in (*CONDITIONS, batch) if name not in facets]
    cells = measured.drop_duplicates("cell_id")
    chosen = cells.groupby(conditions, dropna=False, sort=True).size().idxmax()
    kept = pd.Series(True, index=frame.index)
    left_out = []
    for name, value in zip(conditions, chosen, strict=True):
        missing = frame[name].isna()
        agrees = missing if pd.isna(value) else frame[name] == value
        if name in _KNOWN_ONCE_MEASURED:
            agrees = agrees | (missing & (frame["status"] != "ok"))
        kept &= agrees
        others = sorted({str(other) for other in measured.loc[measured[name] != value, name].dropna()})
        if others and name in ("settings", "input_settings"):
            left_out.append(f"other {name.replace('_', ' ')}")
        elif others:
            left_out.append(f"{name}={' or '.join(others)}")
    return frame[kept], [f"Left out: cells with {', '.join(left_out)}."] if left_out else []


def settle_each(frame: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """As `settle`, for each kind of inputs by itself: a new column `kind`, such as initialised or gaussian.

    The batch is no condition here: it says only how many sequences there are to average over.

    Raises:
        MissingRecords: no cell of the frame is ok.
    """
    batch = ("batch_size", "tokens")
    kind = frame["weights"].where(frame["weights"].notna(), frame["inputs"])
    frame, notes = settle(frame.assign(kind=kind), facets=("inputs", "weights", "input_settings", *batch))
    parts = []
    for _, rows in frame.groupby("kind"):
        if (rows["status"] == "ok").any():
            part, more = settle(rows, facets=batch)
            parts.append(part)
            notes += more
    return pd.concat(parts), notes


def newest(frame: pd.DataFrame, keys: list[str]) -> tuple[pd.DataFrame, list[str]]:
    """One row for each combination of keys, from the newest cell: others had older code or fewer repeats.

    Returns:
        The rows kept, and a sentence where some were left out.
    """
    kept = frame.sort_values("ended", kind="stable").drop_duplicates(keys, keep="last").sort_index()
    left_out = frame["cell_id"].nunique() - kept["cell_id"].nunique()
    return kept, [f"Older measurements of the same points are left out ({left_out})."] if left_out else []


def _rows(record: Record) -> Iterator[Row]:
    config, machine = record.config, record.machine
    bench, inputs, attention = (dict(config.get(key, {})) for key in ("bench", "inputs", "attention"))
    label, name = config.get("label"), bench.get("name")
    against = {
        other["label"]: _mechanism(other["attention"]) | {"impl": other.get("impl", config.get("impl"))}
        for other in bench.get("against", ())
    }
    mechanism = _mechanism(attention)
    settings = {k: v for k, v in config.items() if k not in _NOT_SETTINGS}
    settings["bench"] = {k: v for k, v in bench.items() if k not in _NOT_BENCH_SETTINGS}
    if against:
        settings["baseline"] = attention
    common = (
        {key: config.get(key) for key in COLUMNS if key in config and key not in ("attention", "bench")}
        | {key: machine.get(key) for key in ("cpu_model", "cpu_count", "torch")}
        | {key: getattr(record, key) for key in ("status", "reason", "ended", "cell_id", "record_id", "sweep_id")}
        | {
            "bench": name,
            "attention": label,
            **mechanism,
            "tokens": config.get("batch_size", 0) * config.get("seq_len", 0),
            "inputs": inputs.pop("name", None),
            "weights": inputs.pop("weights", None),
            "input_settings": _json(inputs),
            "settings": _json(settings),
            "device_name": machine.get("gpu_name" if config.get("device") == "cuda" else "cpu_model"),
            "threads": record.numerics.get("threads"),
            "pass": bench.get("measured_pass"),
            "value": np.nan,
        }
    )
    if record.status == "ok" and name in _READERS:
        measured = list(_READERS[name](record.measurements))
    else:
        measured = [{"attention": other, "baseline": label} for other in against] or [{}]
    for row in measured:
        # The config of a comparison is that of its baseline, except for the candidates it lists.
        whole = {**common, **against.get(row.get("attention"), {}), **row}
        yield whole | {"function": record.approximates.get(whole["attention"]) or whole["mechanism"]}


def _mechanism(attention: dict[str, Any]) -> Row:
    hyperparameters = {k: v for k, v in attention.items() if k != "name"}
    size = next((hyperparameters[key] for key in SIZES if hyperparameters.get(key)), None)
    return {"mechanism": attention.get("name"), "hyperparameters": _json(hyperparameters), "features": size}


def _latency(measurements: dict[str, Any]) -> Iterator[Row]:
    for name, timing in measurements["passes"].items():
        samples = np.asarray(timing["samples"], dtype=float)
        yield _median(samples) | {"metric": "latency", "pass": name, "unit": "ns"}
        per_token = _median(samples / measurements["tokens"] / 1e3)
        yield per_token | {"metric": "latency_per_token", "pass": name, "unit": "µs/token"}
    yield {"metric": "flops", "pass": "forward", "value": measurements["flops"], "unit": "FLOP"}


def _memory(measurements: dict[str, Any]) -> Iterator[Row]:
    for name, peak in measurements["passes"].items():
        yield {"metric": "peak_memory", "pass": name, "value": peak["peak_bytes"], "unit": "bytes"}
    if largest := measurements.get("largest"):
        yield {"metric": f"largest_{largest['axis']}", "value": largest["value"], "unit": largest["axis"]}


def _spectral_norm(measurements: dict[str, Any]) -> Iterator[Row]:
    for metric in ("absolute", "relative", "exact_norm"):
        values = np.asarray(measurements[metric], dtype=float).ravel()
        error = standard_error(values)
        yield {
            "metric": metric,
            "value": values.mean(),
            "low": values.mean() - error,
            "high": values.mean() + error,
            "interval": "standard error",
            "samples": len(values),
            "unit": "1",
            "raw": values,
            "reference": measurements["reference"],
            "features": measurements["features"],
        }


def _sketch_error(measurements: dict[str, Any]) -> Iterator[Row]:
    common = {"unit": "1", "reference": "polynomial", "features": measurements["features"]}
    for metric in ("kernel_error", "sketch_error", "kernel_expected", "sketch_expected"):
        if measurements[metric] is None:
            continue
        found = root_mean_square(measurements[metric])
        # What is expected given the inputs has no error.
        error = found.error if metric.endswith("_error") else np.nan
        by_trial = np.sqrt(np.square(measurements[metric]).mean(axis=1))
        yield common | {
            "metric": metric,
            "value": found.value,
            "low": found.value - error,
            "high": found.value + error,
            "interval": "standard error",
            "samples": len(by_trial),
            "raw": by_trial,
        }
    for metric, reduce in (("smallest_weight", np.min), ("negative_share", np.mean)):
        if measurements[metric] is not None:
            raw = np.ravel(measurements[metric])
            yield common | {"metric": metric, "value": reduce(raw), "samples": len(raw), "raw": raw}


def _flops(measurements: dict[str, Any]) -> Iterator[Row]:
    common = {"unit": "FLOP", "features": measurements["features"]}
    yield common | {"metric": "flops_analytic", "value": measurements["analytic"]}
    yield common | {"metric": "flops_counted", "value": measurements["counted"]}


def _decode(measurements: dict[str, Any]) -> Iterator[Row]:
    yield _median(np.asarray(measurements["samples"], dtype=float)) | {"metric": "decode_latency", "unit": "ns"}
    yield {"metric": "state_bytes", "value": measurements["state_bytes"], "unit": "bytes"}


def _compare(measurements: dict[str, Any]) -> Iterator[Row]:
    samples = {label: np.asarray(values, dtype=float) for label, values in measurements["samples"].items()}
    baseline, *candidates = measurements["labels"]
    shared = {"pass": measurements["pass"]}
    for label in measurements["labels"]:
        yield _median(samples[label]) | shared | {"attention": label, "metric": "latency", "unit": "ns"}
    for label in candidates:
        ratio = ratio_interval(samples[baseline], samples[label])
        yield shared | {
            "attention": label,
            "baseline": baseline,
            "metric": "speedup",
            "value": ratio.median,
            "low": ratio.low,
            "high": ratio.high,
            "interval": "95%",
            "samples": len(samples[label]),
            "unit": "1",
            "verdict": ratio.verdict,
            "raw": samples[baseline] / samples[label],
        }


def _median(samples: np.ndarray) -> Row:
    found = median_interval(samples)
    return {
        "value": found.median,
        "low": found.low,
        "high": found.high,
        "interval": "95%",
        "samples": len(samples),
        "raw": samples,
    }


_READERS: dict[str, Callable[[dict[str, Any]], Iterator[Row]]] = {
    "latency": _latency,
    "memory": _memory,
    "spectral_norm": _spectral_norm,
    "compare": _compare,
    "decode": _decode,
    "sketch_error": _sketch_error,
    "flops": _flops,
}


def _json(settings: dict[str, Any]) -> str:
    return json.dumps(settings, sort_keys=True)
