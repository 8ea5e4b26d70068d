"""Records -> one tidy DataFrame: one row per cell, metric and pass, with raw samples and interval."""

import json
import sys
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis import selection
from analysis.selection import MissingRecords
from bench.common.errors import one_line
from bench.common.schema import PASSES
from bench.records.metrics import Metric
from bench.records.record import Record, RecordError
from bench.records.store import latest
from bench.records.summary import Results, features, quantities, traits

Row = dict[str, Any]

COLUMNS = (
    "bench",  # name of the benchmark
    "attention",  # label of the mechanism, as a paper's table names it
    "place",  # position in the order given to `choose`; 0 without one
    "mechanism",
    "function",  # the function that it computes or approximates: softmax, polynomial, or its own name
    "exact",  # whether it computes that function exactly, up to rounding
    "control",  # whether it is a negative control: it sees only a window, its own token, or the mean of all values
    "hyperparameters",  # JSON
    "baseline",  # for a ratio: the label of the denominator's mechanism
    "metric",
    "pass",  # forward, backward, forward_backward
    "value",  # NaN if the cell is not ok, or for a share of the peak above 100 % (data in caches)
    "low",
    "high",
    "interval",  # the kind of interval: "95%", "range" or "95% t", see `bench.records.metrics.Metric`
    "over",  # the unit of replication of the interval, such as "sequences" or "rounds"
    "samples",  # number of samples
    "unit",
    "shown_unit",  # the unit of `value` times `factor`, as tables print it; missing for metrics that no table prints
    "factor",
    "verdict",  # for a ratio: faster, slower or tie; for a share of the peak: compute, memory, or beyond either
    "raw",  # the samples as a numpy array; for a ratio, the ratio of each round
    "status",
    "reason",
    "disturbed",  # whether the machine was not quiet during the measurement
    "disturbance",  # the cause, such as "other processes: 1.3 cores"; several are separated by semicolons
    "busy",  # time of other processes on the cell's cores over its duration, up to their number; missing if unknown
    "features",  # the papers' size d: columns, rows, projection dimension, landmarks; missing if it has none
    "sized_by",  # the hyperparameter that sets the size d
    "seq_len",
    "batch_size",
    "tokens",  # batch_size * seq_len
    "num_heads",
    "head_dim",
    "dtype",
    "causal",
    "inputs",
    "weights",  # for inputs from a pretrained model: initialised or pretrained
    "input_settings",  # JSON
    "source",  # training data: the text that was actually read, or "generated"
    "units",  # of the test of a trained model, in words; older records do not say them
    "impl",
    "seed",
    "settings",  # JSON: all other settings that change the measurement
    "config",  # JSON: all settings of the cell
    "device",
    "device_name",
    "cpu_model",
    "cpu_count",
    "threads",
    "torch",  # its version; of cells on a GPU also Triton's, which compiles the kernels
    "duration_s",  # seconds from the start to the end of the cell's process
    "check_s",  # seconds of these in the correctness gate
    "mechanisms",  # all mechanisms of the cell, separated by commas
    "code",  # hash of the sources that ran; comparable only between cells with the same mechanisms
    "commit",  # git commit of the sources; missing if unknown, or if there were uncommitted changes
    "ended",
    "cell_id",
    "record_id",
    "sweep_id",
)

LATER: Row = {"optimizer": "adamw", "epsilon": 1e-8, "order": "shuffled", "pretrain_steps": 0}
LATER |= {"checkpoint": "last", "patience": None}
"""Settings of training that older records lack, with the values that these were trained with."""

# Settings of training that change what is kept and tested beside the test split, not what it says.
_SEEN_LATER = ("checkpoint_seconds", "test_lengths")
LOOKS = ("evaluate_every", "evaluation_examples")
"""Settings of the looks at the validation split, which decide something only with checkpoint=best or patience."""

# The columns that identify a row of `widened`.
_CONDITIONS = (
    *("attention", "seq_len", "batch_size", "num_heads", "head_dim", "dtype", "causal", "features", "baseline"),
    *("inputs", "weights", "input_settings", "impl", "seed", "hyperparameters", "settings"),
    *("device_name", "cpu_model", "cpu_count", "threads", "torch"),
)

# Keys of a config that have their own columns, or that change only how precisely something is measured.
_NOT_SETTINGS = frozenset(
    (*COLUMNS, "grids", "label", "repeats", "rerun", "results_dir", "size", "timeout", "tokens_per_batch", "tracking")
)


def __getattr__(name: str) -> Any:
    if name in ("choose", "newest", "series", "settle"):
        warnings.warn(f"analysis.frame.{name} is analysis.selection.{name}", DeprecationWarning, stacklevel=2)
        return getattr(selection, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def load(results_dir: str | Path, cell_ids: Collection[str] | None = None) -> pd.DataFrame:
    """The newest finished record of every cell (or of `cell_ids`) under `results_dir` as a tidy frame.

    Raises:
        MissingRecords: there are no such records.
        OSError: the folder cannot be read.
    """
    standing = latest(Results(results_dir).load())
    chosen = [record for cell_id, record in standing.items() if cell_ids is None or cell_id in cell_ids]
    if not chosen:
        which = "" if cell_ids is None else f" of the {len(cell_ids)} cells asked for"
        what = f"holds no records{which}" if Path(results_dir).is_dir() else "is no folder"
        raise MissingRecords(f"results_dir={results_dir}: {what}; `python -m bench` writes records")
    return tidy(chosen)


def widened(frame: pd.DataFrame) -> pd.DataFrame:
    """One row for each mechanism and condition that varies, one column for each metric in a readable unit.

    Cells that differ only in their seed have a row each; of several measurements of the same, the newest has it.
    """
    shown = frame[(frame["status"] == "ok") & frame["shown_unit"].notna()].sort_values("ended", kind="stable")
    names = shown["metric"] + shown["pass"].map(lambda name: f" {name}" if isinstance(name, str) else "")
    shown["name"] = names + shown["shown_unit"].map(lambda unit: f" ({unit})" if unit else "")
    shown["shown"] = shown["value"] * shown["factor"]
    shown["settings"] = _joined_settings(shown)
    conditions = [k for k in _CONDITIONS if shown[k].nunique(dropna=False) > 1 or k in ("attention", "seq_len")]
    wide = shown.groupby([*conditions, "name"], dropna=False)["shown"].last().unstack("name")
    return wide.reset_index().rename_axis(columns=None)


def _joined_settings(rows: pd.DataFrame) -> list[str]:
    """One row joins metrics of several benchmarks: of their own settings only those count that differ within one.

    Models and tasks must agree.
    """
    parts = [json.loads(text) for text in rows["settings"]]
    values: dict[tuple[str, str], set[str]] = {}
    for bench, part in zip(rows["bench"], parts, strict=True):
        for key, value in part.get("bench", {}).items():
            values.setdefault((bench, key), set()).add(json.dumps(value))
    joined = []
    for bench, part in zip(rows["bench"], parts, strict=True):
        own = {f"bench.{k}": v for k, v in part.get("bench", {}).items() if len(values[bench, k]) > 1}
        joined.append(_json({k: v for k, v in part.items() if k not in ("bench", "baseline")} | own))
    return joined


def tidy(records: Iterable[Record]) -> pd.DataFrame:
    """A frame with `COLUMNS`, one row per cell, metric and pass (and per candidate of a comparison).

    A cell that is not ok has one row with its status and reason, without a metric. The `quantities` of each benchmark
    turn its measurements into metrics; a record that they cannot read is reported on stderr and left out.
    """
    rows: list[Row] = []
    for record in records:
        try:
            rows += list(_rows(record))
        except RecordError as error:
            print(f"skipped, {one_line(error)}", file=sys.stderr)
        except Exception as error:  # one malformed record must not lose the others
            print(f"skipped, {record.file_name}: {type(error).__name__}: {one_line(error)}", file=sys.stderr)
    frame = pd.DataFrame(rows, columns=list(COLUMNS))
    numbers = {name: "float64" for name in ("value", "low", "high", "factor", "busy", "duration_s", "check_s")}
    counts = {name: "Int64" for name in ("samples", "features", "cpu_count", "threads")}
    return selection.compact(frame.astype(numbers | counts | {"disturbed": bool}))


def _rows(record: Record) -> Iterator[Row]:
    config, against = record.config, record.config["bench"].get("against", ())
    common = _conditions(record)
    measured = [_of_quantity(quantity) for quantity in quantities(record)]
    # A cell without metrics has one row; a comparison without metrics has one for each candidate.
    silent = [{"attention": other["label"], "baseline": config["label"]} for other in against] or [{}]
    labelled = {each["label"]: _mechanism(record, each) for each in (config, *against)}
    for row in measured or silent:
        yield common | labelled[row.get("attention") or config["label"]] | row


def _conditions(record: Record) -> Row:
    """The columns that are equal in all rows of a cell."""
    machine, bench, inputs = record.machine, record.config["bench"], dict(record.config["inputs"])
    # cuda:0 and cuda:1 are comparable; `device_name` tells models of GPUs apart.
    config = record.config | {"device": str(record.config.get("device")).partition(":")[0]}
    settings = {k: v for k, v in config.items() if k not in _NOT_SETTINGS}
    not_conditions = {"against", "name", *traits(record)["not_conditions"]}
    if isinstance(training := settings.get("training"), dict):
        looks_decide = training.get("checkpoint", "last") != "last" or training.get("patience") is not None
        left_out = {*_SEEN_LATER, *(() if looks_decide else LOOKS)}
        own = {k: v for k, v in training.items() if k not in left_out and (k, v) not in LATER.items()}
        settings["training"] = own
    settings["bench"] = {k: v for k, v in bench.items() if k not in not_conditions}
    # If a cell measures a single pass, it is known from the config even if the cell failed.
    passes = bench.get("passes")
    only_pass = bench.get("measured_pass") or (passes[0] if isinstance(passes, list) and len(passes) == 1 else None)
    if bench.get("against"):
        settings["baseline"] = {**config["attention"], "dtype": config.get("dtype")}
    return {
        **{key: config.get(key) for key in COLUMNS if key in config and key not in ("attention", "bench")},
        **{"cpu_model": record.cpu, "cpu_count": machine.get("cpu_count"), "torch": _software(machine)},
        **{key: getattr(record, key) for key in ("status", "reason", "ended", "cell_id", "record_id", "sweep_id")},
        "bench": bench["name"],
        "disturbed": bool(record.disturbed),
        "disturbance": "; ".join(record.disturbed) if record.disturbed else None,
        "busy": _busy(record),
        "tokens": config["batch_size"] * config["seq_len"],
        "inputs": inputs.pop("name", None),
        "weights": inputs.pop("weights", None),
        "input_settings": _json(inputs),
        "source": record.measurements.get("source"),
        "units": record.measurements.get("unit"),
        "settings": _json(settings),
        "config": json.dumps(record.config),  # in the order in which a sweep's table names them
        "device_name": record.device_name,
        "threads": record.numerics.get("threads"),
        "mechanisms": ", ".join(sorted({cell["attention"]["name"] for cell in (config, *bench.get("against", ()))})),
        "code": record.code.get("sources_sha256"),
        "commit": None if record.code.get("git_dirty") else record.code.get("git_sha"),
        "duration_s": record.duration_s,
        "check_s": record.seconds.get("check"),
        "pass": only_pass if only_pass in PASSES else None,
        "place": 0,
        "value": np.nan,
    }


def _software(machine: Mapping[str, Any]) -> str | None:
    torch = machine.get("torch")
    return f"{torch}, triton {machine.get('triton')}" if torch and machine.get("gpu_name") else torch


def _busy(record: Record) -> float | None:
    if record.measurements.get("resumed_from"):
        return 1.0  # nobody knows what ran beside the steps before the interruption
    during = record.host_state.get("during") or {}
    others, seconds = (during.get(key) for key in ("others_s", "seconds"))
    if isinstance(others, int | float) and isinstance(seconds, int | float) and seconds:
        return others / seconds
    return None


def _mechanism(record: Record, cell: dict[str, Any]) -> Row:
    """The columns about one of the cell's mechanisms; `cell` is its entry in the config."""
    name, facts = cell["attention"].get("name"), record.mechanisms.get(cell["label"], {})
    return {
        "attention": cell["label"],
        "mechanism": name,
        "function": facts.get("approximates") or name,
        "exact": bool(facts.get("exact")),
        "control": bool(facts.get("control")),
        "hyperparameters": _json({k: v for k, v in cell["attention"].items() if k != "name"}),
        "features": features(record, cell["label"]),
        # Older comparisons do not set these per candidate.
        **{key: cell.get(key, record.config.get(key)) for key in ("impl", "dtype")},
        "sized_by": facts.get("size"),
    }


def _of_quantity(quantity: Metric) -> Row:
    unit, factor = quantity.shown or (None, np.nan)
    row = {key: value for key, value in vars(quantity).items() if key in COLUMNS}
    row |= {"pass": quantity.measured_pass, "samples": quantity.samples, "shown_unit": unit, "factor": factor}
    # Without a value, that of the cell applies.
    unnamed = [key for key in ("pass", "attention", "baseline") if row[key] is None]
    return {key: value for key, value in row.items() if key not in unnamed}


def _json(settings: dict[str, Any]) -> str:
    return json.dumps(settings, sort_keys=True)
