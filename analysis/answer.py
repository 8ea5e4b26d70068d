"""Which attention should I use, from which length on, and at what cost? As numbers and as a table.

Speeds are over the best exact softmax that was measured in the same rounds, in any kernel and dtype; memory is over the
exact softmax of the same dtype that needs least.
"""

import json
import math
from collections.abc import Mapping
from typing import NamedTuple

import pandas as pd

from analysis.plots import crossover
from analysis.selection import MissingRecords, controls, exact_softmax, mask, newest, unless_quiet
from bench.records.statistics import Ratio

UNKNOWN = "–"
PASSES = ("forward", "forward_backward")
NEEDS = "needs an ok record of bench=compare of a forward pass, of exact softmax and another mechanism"
AVERAGING = "v_mean"
"""The mean of all values: an approximation is useful only if its error is smaller."""


Interval = tuple[float, float, float]


class Answer(NamedTuple):
    """The results of one mechanism under one mask, in one dtype; NaN or None where nothing was measured."""

    attention: str
    is_control: bool
    """Whether it sees too little to be advised: a window, its own token, or the mean of all values."""
    causal: bool
    dtype: str
    from_n: float
    """The shortest measured length at which, as at all longer ones, the forward pass is faster; or inf."""
    is_first: bool
    """Whether `from_n` is the shortest length measured: the mechanism may be faster at shorter ones, too."""
    n: int
    """The longest length at which it was compared; `forward` is measured there."""
    forward: Ratio | None
    """How many times as fast as the best exact softmax in the same rounds."""
    training_from: tuple[float, bool] | None
    """`from_n` and `is_first` of forward and backward pass together; None where it was not compared."""
    training_n: float
    training: Ratio | None
    """As `forward`, for forward and backward pass together, at `training_n`."""
    memory: dict[float, float]
    """By length: peak bytes of a forward pass, divided by those of the exact softmax that needs least."""
    training_memory: dict[float, float]
    """As `memory`, for forward and backward pass together."""
    error_n: float
    error: Interval | None
    """Error relative to exact softmax on a trained model's inputs of length `error_n`, with its interval."""
    averaging: Interval | None
    """The error of averaging the values, on the same inputs."""
    disturbed: str | None
    """What disturbed the machine while the mechanism was compared."""
    softmax: str
    """The exact softmax that most of its speeds of forward passes are over, with its dtype if that is another."""
    device_name: str
    """Of the machine that its speeds are of."""
    speeds: dict[str, dict[float, Ratio]]
    """By pass (`forward`, `forward_backward`) and length: as `forward` and `training`, which are of the longest."""


def answers(frame: pd.DataFrame) -> list[Answer]:
    """One answer per mechanism, mask and dtype compared with exact softmax in interleaved rounds (bench=compare)."""
    speeds = crossover.speeds(frame)
    speeds = speeds[~speeds["exact_softmax"]]
    found = []
    for (dtype, causal, name), rows in speeds.groupby(["dtype", "causal", "attention"]):
        forward, training = (rows[rows["pass"] == which].sort_values("seq_len") for which in PASSES)
        if forward.empty:
            continue
        from_n, is_first = _from(forward)
        own = frame[_alike(frame, rows.iloc[0]) & (frame["causal"] == causal)]
        there = frame[(frame["dtype"] == dtype) & frame["device_name"].isin(rows["device_name"])]
        peaks = [_memory(there, own, which) for which in PASSES]
        error_n, error, averaging = _errors(frame, own)
        found.append(
            Answer(
                attention=str(name),
                is_control=bool(controls(rows).any()),
                causal=bool(causal),
                dtype=str(dtype),
                from_n=from_n,
                is_first=is_first,
                n=int(forward["seq_len"].max()),
                forward=_of_longest(forward),
                training_from=_from(training) if len(training) else None,
                training_n=float(training["seq_len"].max()),
                training=_of_longest(training),
                memory=peaks[0],
                training_memory=peaks[1],
                error_n=error_n,
                error=error,
                averaging=averaging,
                disturbed=_disturbed(rows),
                softmax=str(forward["best"].mode()[0]).removesuffix(f" {dtype}"),
                device_name=str(rows["device_name"].iloc[0]),
                speeds={"forward": _by_length(forward), "forward_backward": _by_length(training)},
            )
        )
    if not found:
        raise MissingRecords(NEEDS)
    return sorted(found, key=lambda one: (one.dtype != "float32", one.dtype, one.causal, *earliest(one)))


def table(frame: pd.DataFrame) -> pd.DataFrame:
    """From which length on each mechanism is faster than the best exact softmax, by how much, at what memory and error.

    `from n`: the shortest measured length at which, as at all longer ones, the forward pass is faster (no tie), and how
    many times as fast it is there; `from n, training`: so are forward and backward pass together. `forward` and
    `training`: how many times as fast as the best exact softmax in the same rounds, with 95 % intervals, at `n`.
    `memory`: peak bytes, divided by those of the exact softmax in this dtype that needs least, at the longest length.
    `error`: on a trained model's inputs, relative to exact softmax, in any dtype; `of averaging` is the same for the
    mean of the values. Polynomial and linear attention do not approximate softmax.
    """
    return unless_quiet(lines(answers(frame)))


def lengths(one: Answer) -> dict[str, float]:
    """The length of each number, by its column."""
    return {
        "forward": one.n,
        "training": one.training_n,
        "memory": max(one.memory, default=math.nan),
        "memory, training": max(one.training_memory, default=math.nan),
        "error": one.error_n,
    }


def lines(found: list[Answer], usual: Mapping[str, float] | None = None) -> pd.DataFrame:
    """The rows of `table` with the column `disturbed`, without the columns that have no measurement.

    A number of another length than the `usual` one of its column, or than its row's `n`, says its length.
    """

    def at(column: str, one: Answer) -> str:
        n = lengths(one)[column]
        return "" if n == (usual or {}).get(column, one.n) or not math.isfinite(n) else f" at {n:,.0f}"

    rows = [
        {
            "attention": f"{one.attention} (control)" if one.is_control else one.attention,
            "mask": mask(one.causal),
            "dtype": one.dtype,
            "from n": _since(one.from_n, one.is_first, one.n, one.speeds["forward"]),
            "from n, training": _since(*one.training_from, one.training_n, one.speeds["forward_backward"])
            if one.training_from
            else UNKNOWN,
            "n": one.n,
            "forward": speed(one.forward) + at("forward", one),
            "training": speed(one.training) + at("training", one),
            "memory": _times(one.memory) + at("memory", one),
            "memory, training": _times(one.training_memory) + at("memory, training", one),
            "error": error_text(one.error) + at("error", one),
            "of averaging": error_text(one.averaging),
            "disturbed": one.disturbed,
        }
        for one in found
    ]
    table = pd.DataFrame(rows)
    if table["dtype"].nunique() == 1:
        table = table.drop(columns="dtype")
    return table.loc[:, ~(table == UNKNOWN).all()]


def earliest(one: Answer) -> tuple[float, float, str]:
    """Sorts by the length from which a mechanism is faster; of several, the fastest at the longest comes first."""
    return one.from_n, -(one.forward.median if one.forward else 0.0), one.attention


def _disturbed(rows: pd.DataFrame) -> str | None:
    """The worst of each kind of disturbance."""
    causes = {cause for text in rows.get("disturbed", pd.Series(dtype=object)).dropna() for cause in text.split("; ")}
    worst = {cause.partition(":")[0]: cause for cause in sorted(causes, key=lambda cause: (len(cause), cause))}
    return "; ".join(worst.values()) or None


def is_faster(one: Ratio | None) -> bool:
    """Whether it is clearly faster than the best exact softmax."""
    return one is not None and one.verdict == "faster"


def _of_longest(rows: pd.DataFrame) -> Ratio | None:
    """The speed at the longest length with its interval; None without rows."""
    speeds = _by_length(rows)
    return speeds[max(speeds)] if speeds else None


def _by_length(rows: pd.DataFrame) -> dict[float, Ratio]:
    columns = rows[["seq_len", "over_best", "best_low", "best_high", "best_verdict"]]
    return {float(n): Ratio(*numbers) for n, *numbers in columns.itertuples(index=False, name=None)}


def _from(rows: pd.DataFrame) -> tuple[float, bool]:
    """The first measured length from which on all verdicts are `faster`, and whether that is the shortest measured."""
    is_ahead = (rows["best_verdict"] == "faster")[::-1].cummin()[::-1]
    return (float(rows["seq_len"][is_ahead].iloc[0]), bool(is_ahead.all())) if is_ahead.any() else (math.inf, False)


def _alike(frame: pd.DataFrame, one: pd.Series) -> pd.Series:
    """Which rows are of the same mechanism, implementation and settings, of which a record may lack some."""
    settings = json.loads(one["hyperparameters"])
    texts = frame.loc[frame["mechanism"] == one["mechanism"], "hyperparameters"].drop_duplicates()
    same = [all(settings.get(k, v) == v for k, v in each.items()) for each in map(json.loads, texts)]
    is_same = (frame["mechanism"] == one["mechanism"]) & (frame["impl"] == one["impl"])
    return is_same & frame["hyperparameters"].isin(texts[same])


def _memory(frame: pd.DataFrame, own: pd.DataFrame, measured_pass: str) -> dict[float, float]:
    """The `own` peak memory over that of the exact softmax that needs least among the rows of `frame`, by length.

    Of several shapes, the smallest.
    """
    is_peak = (frame["bench"] == "memory") & (frame["metric"] == "peak_memory") & (frame["pass"] == measured_pass)
    rows = frame[is_peak]
    shape = ["seq_len", "batch_size", "num_heads", "head_dim", "device_name", "causal"]
    softmax = newest(rows[exact_softmax(rows)], ["attention", "hyperparameters", "impl", *shape])
    least = softmax.groupby(shape)["value"].min()
    peaks = newest(rows.loc[rows.index.intersection(own.index)], shape).set_index(shape)["value"]
    smallest = (peaks / least).dropna().sort_index().groupby("seq_len").first()
    return {float(n): float(ratio) for n, ratio in smallest.items()}


def _errors(frame: pd.DataFrame, own: pd.DataFrame) -> tuple[float, Interval | None, Interval | None]:
    """The longest length, and there the `own` error and that of averaging on a trained model, or NaN and None."""
    rows = frame[(frame["bench"] == "spectral_norm") & (frame["metric"] == "relative")]
    rows = rows[(rows["inputs"] == "pretrained") & (rows["weights"] != "initialised") & rows["low"].notna()]
    rows = rows[rows["function"] == "softmax"]  # polynomials are approximated, too
    rows = rows[rows["causal"].isin(own["causal"])]
    # Errors on other inputs do not compare: those of most mechanisms are taken.
    inputs = rows.groupby(["input_settings", "device_name"], dropna=False).ngroup()
    rows = rows[inputs == rows.groupby(inputs)["attention"].nunique().idxmax()] if len(rows) else rows
    shape = ["seq_len", "batch_size", "input_settings", "device_name", "causal"]
    errors = newest(rows.loc[rows.index.intersection(own.index)], shape)
    means = newest(rows[rows["attention"] == AVERAGING], shape)
    both = errors.merge(means, on=shape, suffixes=("", "_mean"))
    if both.empty or (own["attention"] == AVERAGING).any():
        return math.nan, None, None
    last = both.sort_values("seq_len", kind="stable").iloc[-1]
    error, mean = (
        (float(last[f"value{of}"]), float(last[f"low{of}"]), float(last[f"high{of}"])) for of in ("", "_mean")
    )
    return float(last["seq_len"]), error, mean


def said_length(from_n: float, is_first: bool, longest: float) -> str:
    """`1,024`, `512 (the shortest measured)` or `none up to 8,192`, the `longest` length measured."""
    if not math.isfinite(from_n):
        return f"none up to {longest:,.0f}"
    return f"{from_n:,.0f}{' (the shortest measured)' if is_first else ''}"


def _since(from_n: float, is_first: bool, longest: float, speeds: dict[float, Ratio]) -> str:
    """`1,024: 1.3x`."""
    there = speeds.get(from_n)
    return said_length(from_n, is_first, longest) + (f": {speed(there).partition(' ')[0]}" if there else "")


def speed(one: Ratio | None) -> str:
    """`6.7x (6.0 to 7.1)`, near 1 with two decimals, so that no tie is seen where there is none."""
    if one is None:
        return UNKNOWN
    digits = 2 if one.median < 2 else 1
    return f"{one.median:.{digits}f}x ({one.low:.{digits}f} to {one.high:.{digits}f})"


def _times(ratios: dict[float, float]) -> str:
    """`0.6x`, at the longest length."""
    return f"{ratios[max(ratios)]:.1f}x" if ratios else UNKNOWN


def error_text(error: Interval | None) -> str:
    """`0.23 (0.22 to 0.24)`."""
    return UNKNOWN if error is None else f"{error[0]:.2f} ({error[1]:.2f} to {error[2]:.2f})"
