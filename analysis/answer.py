"""Which attention should I use, from which length on, and at what cost? As a table and as sentences.

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

CLEARLY = 0.9
"""Of softmax's memory: ratios above this may come from the allocator's page size."""
UNKNOWN = "–"
_SAID = {"forward": "forward pass", "forward_backward": "forward and backward pass of one attention"}
NEEDS = "needs an ok record of bench=compare of a forward pass, of exact softmax and another mechanism"
AVERAGING = "v_mean"
"""The mean of all values: an approximation is useful only if its error is smaller."""


Ratio = tuple[float, float, float]


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
    """How many times as fast as the baseline in the same rounds: median, and the ends of the 95 % interval."""
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
    error: Ratio | None
    """Error relative to exact softmax on a trained model's inputs of length `error_n`, with its interval."""
    averaging: Ratio | None
    """The error of averaging the values, on the same inputs."""
    disturbed: str | None
    """What disturbed the machine while the mechanism was compared."""
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
        forward, training = (rows[rows["pass"] == which].sort_values("seq_len") for which in _SAID)
        if forward.empty:
            continue
        from_n, is_first = _from(forward)
        own = frame[_alike(frame, rows.iloc[0]) & (frame["causal"] == causal)]
        there = frame[(frame["dtype"] == dtype) & frame["device_name"].isin(rows["device_name"])]
        peaks = [_memory(there, own, which) for which in _SAID]
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
                device_name=str(rows["device_name"].iloc[0]),
                speeds={"forward": _by_length(forward), "forward_backward": _by_length(training)},
            )
        )
    if not found:
        raise MissingRecords(NEEDS)
    return sorted(found, key=lambda one: (one.dtype != "float32", one.dtype, one.causal, *_earliest(one)))


def table(frame: pd.DataFrame) -> pd.DataFrame:
    """From which length on each mechanism is faster than the best exact softmax, by how much, at what memory and error.

    `from n`: the shortest measured length at which, as at all longer ones, the forward pass is faster (no tie);
    `from n, training`: so are forward and backward pass together. `forward` and `training`: how many times as fast as
    the best exact softmax in the same rounds, with 95 % intervals, at `n`. `memory`: peak bytes, divided by those of
    the exact softmax in this dtype that needs least, at the longest length. `error`: on a trained model's inputs,
    relative to exact softmax, in any dtype; `of averaging` is the same for the mean of the values. Polynomial and
    linear attention do not approximate softmax.
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
            "from n": said_length(one.from_n, one.is_first, one.n),
            "from n, training": said_length(*one.training_from, one.training_n) if one.training_from else UNKNOWN,
            "n": one.n,
            "forward": speed(one.forward) + at("forward", one),
            "training": speed(one.training) + at("training", one),
            "memory": _times(one.memory) + at("memory", one),
            "memory, training": _times(one.training_memory) + at("memory, training", one),
            "error": _error(one.error) + at("error", one),
            "of averaging": _error(one.averaging),
            "disturbed": one.disturbed,
        }
        for one in found
    ]
    table = pd.DataFrame(rows)
    if table["dtype"].nunique() == 1:
        table = table.drop(columns="dtype")
    return table.loc[:, ~(table == UNKNOWN).all()]


def sentences(found: list[Answer]) -> list[str]:
    """Advice for each mask and dtype: when to keep softmax, and which other mechanism to use for what."""
    return [" ".join(own) for own in advice(found)]


def advice(found: list[Answer]) -> list[list[str]]:
    """Sentences for each mask and dtype (float32 is not named) on speed, memory and errors; none advises a control."""
    own: dict[str, list[Answer]] = {}
    masks = {"With a causal mask": True, "Without a mask": False}
    for dtype in dict.fromkeys(one.dtype for one in found):
        for words, causal in masks.items():
            those = [one for one in found if (one.dtype, one.causal, one.is_control) == (dtype, causal, False)]
            own[words if dtype == "float32" else f"{words}, in {dtype}"] = those
    return [_of_mask(those, words) for words, those in own.items() if those]


def fastest(own: list[Answer]) -> tuple[Answer, str, float] | None:
    """Of those that are faster than softmax the one that trains fastest; if none trains faster, the fastest forward.

    Also the pass in which it is, and the length: the longest at which most of those were measured. Ratios grow with the
    length, so those of different lengths do not compare.
    """
    ahead = _ahead(own)
    trained = [one for one in ahead if _is_faster(one.training)]
    those, which = (trained, "forward_backward") if trained else (ahead, "forward")
    faster = [(one, n) for one in those for n, ratio in one.speeds[which].items() if _is_faster(ratio)]
    if not faster:
        return None
    at = _common([n for _, n in faster])
    return max((one for one, n in faster if n == at), key=lambda one: one.speeds[which][at][0]), which, at


def _common(lengths: list[float]) -> float:
    """The most frequent of these lengths, of several the longest."""
    return max(lengths, key=lambda n: (lengths.count(n), n))


def _ahead(own: list[Answer]) -> list[Answer]:
    return [one for one in own if math.isfinite(one.from_n) and _is_faster(one.forward)]


def _earliest(one: Answer) -> tuple[float, float, str]:
    """Sorts by the length from which a mechanism is faster; of several, the fastest at the longest comes first."""
    return one.from_n, -(one.forward or (0.0,))[0], one.attention


def _of_mask(own: list[Answer], words: str) -> list[str]:
    ahead, found = _ahead(own), fastest(own)
    if found is None:
        softmax = f"use exact softmax up to n = {max(one.n for one in own):,} (forward pass)"
        return [f"{words}: {softmax}; {_why_softmax(own)}{_faster_to_train(own)}."]
    best, which, at = found
    first = min(ahead, key=lambda one: (one.from_n, one is not best, *_earliest(one)))
    trains = which == "forward_backward"  # of those that are faster at all, the fastest to train
    gain = f"{speed(best.speeds[which][at])} as fast as the best exact softmax ({_SAID[which]})"
    timed = sum(at in one.speeds[which] for one in own)
    is_fastest = f"the fastest{' to train' if trains else ''} at n = {at:,.0f} (of {timed} measured): {gain}."
    where = "there" if first.from_n == first.n else f"from there to n = {first.n:,}"
    from_there = (
        f"{words}: use exact softmax below n = {first.from_n:,.0f}, where nothing stays clearly faster; "
        f"`{first.attention}` is faster{' (forward pass)' * trains} {where}, the longest at which it was measured"
    )
    if first.is_first:
        said = f"{words}: `{best.attention}` is {is_fastest}"
    elif first is best:
        said = f"{from_there}, and {is_fastest}"
    else:
        said = f"{from_there}; `{best.attention}` is {is_fastest}"
    return [said, *_of_memory(own), *_of_errors(own, ahead, best)]


def _why_softmax(own: list[Answer]) -> str:
    """In words, how the others' forward passes compare where none is faster from some length on."""
    faster = {one.attention: [n for n, ratio in one.speeds["forward"].items() if _is_faster(ratio)] for one in own}
    those = [f"`{name}` is at n = {' and '.join(f'{n:,.0f}' for n in at)}" for name, at in faster.items() if at]
    undecided = [f"`{one.attention}` {speed(one.forward)}" for one in own if one.forward and one.forward[2] >= 1]
    if not those and all(high < 1 for one in own for *_, high in one.speeds["forward"].values()):
        return "all others are slower"
    words = [f"nothing that was measured {'stays' if those else 'is'} clearly faster", *those]
    return ", ".join([*words, f"undecided is {', '.join(undecided)}"] if undecided else words)


def _faster_to_train(own: list[Answer]) -> str:
    """What trains faster from some length on, though its forward pass is not faster; may be empty."""
    since = {one.attention: (*one.training_from, one.training_n) for one in own if one.training_from}
    names = [f"`{name}` from n = {said_length(*of)} on" for name, of in since.items() if math.isfinite(of[0])]
    return f"; faster to train: {', '.join(names)}" if names else ""


def _of_memory(own: list[Answer]) -> list[str]:
    """A sentence: the smallest peaks at the longest length, of a forward pass and of training, and a smaller one.

    The smaller one is the smallest at any length, if it is clearly below softmax's and those at the longest are not.
    """
    peaks = {
        "a forward pass": [(ratio, one.attention, n) for one in own for n, ratio in one.memory.items()],
        "training": [(ratio, one.attention, n) for one in own for n, ratio in one.training_memory.items()],
    }
    measured = {what: of for what, of in peaks.items() if of}
    if not measured:
        return []
    least = {what: min(one for one in of if one[2] == max(n for *_, n in of)) for what, of in measured.items()}
    each = [f"{ratio:.1f}x in {what} (`{name}`, n = {n:,.0f})" for what, (ratio, name, n) in least.items()]
    over = f"as a multiple of that of the {own[0].dtype} softmax that needs least"
    if min(least.values())[0] < CLEARLY:
        return [f"Memory: the smallest peak is, {over}, {' and '.join(each)}."]
    ratio, name, n, what = min((*min(of), what) for what, of in measured.items())
    shorter = f"; `{name}` has {ratio:.2f}x at n = {n:,.0f} in {what}" if ratio < CLEARLY else ""
    saves = "No mechanism clearly saves memory at the longest length"
    return [f"{saves}: the smallest peak is, {over}, {' and '.join(each)}{shorter}."]


def _of_errors(own: list[Answer], ahead: list[Answer], best: Answer) -> list[str]:
    """A sentence: what is nearest to a trained model's softmax, if it is clearly nearer than averaging the values.

    The error of the `best` one, the fastest, stands beside it if averaging is clearly better, at the same length.
    """
    known = [one for one in own if one.error and one.averaging]
    nearer = [one for one in known if one.error and one.averaging and one.error[2] < one.averaging[1]]
    faster = [one for one in nearer if one in ahead]
    if not known:
        return []
    those = faster or nearer or known
    at = _common([one.error_n for one in those])  # an error grows with the length
    near = min((one for one in those if one.error_n == at), key=lambda one: one.error or (math.inf,))
    name = f"`{near.attention}`"
    errors = f"error {_error(near.error)} at n = {near.error_n:,.0f}, averaging the values {_error(near.averaging)}"
    place = "In place of a trained model's softmax"
    if faster:
        since = said_length(near.from_n, near.is_first, near.n)
        is_worse = best.error and best.averaging and best.error[1] > best.averaging[2]
        more = f"; `{best.attention}` has {_error(best.error)}" if is_worse and best.error_n == near.error_n else ""
        return [f"{place}, {name} is the nearest that is faster, from n = {since} on: {errors}{more}."]
    if nearer:
        return [f"{place}, {name} is nearer than averaging, but not faster: {errors}."]
    if len(known) > 1:
        return [f"{place}, no approximation that was measured is clearly better than averaging; {name}: {errors}."]
    return [f"{place}, {name} (no other was measured) is not clearly better than averaging: {errors}."]


def _disturbed(rows: pd.DataFrame) -> str | None:
    """The worst of each kind of disturbance."""
    causes = {cause for text in rows.get("disturbed", pd.Series(dtype=object)).dropna() for cause in text.split("; ")}
    worst = {cause.partition(":")[0]: cause for cause in sorted(causes, key=lambda cause: (len(cause), cause))}
    return "; ".join(worst.values()) or None


def _is_faster(ratio: Ratio | None) -> bool:
    return ratio is not None and ratio[1] > 1


def _of_longest(rows: pd.DataFrame) -> Ratio | None:
    """The speed at the longest length with its interval; None without rows."""
    ratios = _by_length(rows)
    return ratios[max(ratios)] if ratios else None


def _by_length(rows: pd.DataFrame) -> dict[float, Ratio]:
    columns = rows[["seq_len", "over_best", "best_low", "best_high"]].astype(float)
    return {n: (value, low, high) for n, value, low, high in columns.itertuples(index=False, name=None)}


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


def _errors(frame: pd.DataFrame, own: pd.DataFrame) -> tuple[float, Ratio | None, Ratio | None]:
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


def speed(ratio: Ratio | None) -> str:
    """`6.7x (6.0 to 7.1)`."""
    return UNKNOWN if ratio is None else f"{ratio[0]:.1f}x ({ratio[1]:.1f} to {ratio[2]:.1f})"


def _times(ratios: dict[float, float]) -> str:
    """`0.6x`, at the longest length."""
    return f"{ratios[max(ratios)]:.1f}x" if ratios else UNKNOWN


def _error(error: Ratio | None) -> str:
    return UNKNOWN if error is None else f"{error[0]:.2f} ({error[1]:.2f} to {error[2]:.2f})"
