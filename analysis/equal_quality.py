"""From which length on is a mechanism faster than softmax at an equally good loss? Computed from records alone."""

from typing import Any

import numpy as np
import pandas as pd

from analysis.controls import BLIND, comparisons, diagnose, losses
from analysis.paired import BETTER, EQUIVALENT, UNDECIDED
from analysis.selection import MissingRecords, disturbance, exact_softmax, newest, settle, unless_quiet
from analysis.training import MOST_HOURS, hours_apart, panels, trained_cells, work
from bench.records.statistics import ratio_interval

UNKNOWN = "unknown"
INTERLEAVED, APART, LONG_APART = "interleaved", "minutes apart", "hours apart"
DRIFT = 1.5
"""Beyond this factor steps timed minutes apart are called faster or slower: a shared machine drifts by as much."""
NEEDS = "needs bench=train of softmax and another mechanism with losses by unit and two seeds or more"
# Columns that identify a training step, apart from the machine.
MECHANISM = ["mechanism", "hyperparameters", "impl"]
STEP = [*MECHANISM, "seq_len", "batch_size", "num_heads", "head_dim", "dtype", "work"]
_DIFFERENCE = ["difference (nats)", "low", "high"]
_Steps = dict[tuple[Any, ...], dict[Any, Any]]
_SPEED = ["speed", "speed low", "speed high", "step", "timed"]


def table(frame: pd.DataFrame) -> pd.DataFrame:
    """The shortest length at which a whole training step is faster than the best softmax, at a loss as good or better.

    `equal from` is the answer, of all lengths together: that length; `none up to n` if it is no at every length;
    `unknown` if records are missing, a difference is undecided, or the task is not diagnostic. `speed` is the step
    time of the fastest exact softmax that was timed so, divided by the mechanism's, for the same model, task and
    batch (in any dtype), and `step` whether that is faster; `timed` in the same rounds (bench=compare_train_step) or
    in cells minutes apart (bench=train_step; undecided unless the interval is beyond a factor of 1.5) or hours apart
    (undecided). A step that is not faster answers for its length without a loss. The difference is the test loss minus
    softmax's, paired by seed; `loss is` its verdict, that of `paired` (corrected for all comparisons of a task and
    length). Empty: not measured.
    """
    data, _ = trained_cells(frame)
    return unless_quiet(lengths(frame, data).drop(columns=["kind", "series", "is equal"]))


def lengths(frame: pd.DataFrame, data: pd.DataFrame) -> pd.DataFrame:
    """The rows of `table`, with the columns `kind` and `series` of `data`, and `is equal` (True, False or None)."""
    speeds = {tuple(step[name] for name in STEP): step for step in _speeds(frame).to_dict("records")}
    tasks = pd.Series(dict(panels(data))).groupby(level=0)
    found = [row for _, own in tasks for row in _of_task(dict(own), speeds)]
    if not found:
        raise MissingRecords(NEEDS)
    columns = ["task", "n", "attention", "equal from", *_SPEED, *_DIFFERENCE, "loss is"]
    return pd.DataFrame(found, columns=[*columns, "kind", "series", "is equal", "disturbed"])


def _of_task(by_length: dict[tuple[str, int], pd.DataFrame], speeds: _Steps) -> list[dict[str, Any]]:
    """The rows of one task: for each mechanism, all lengths."""
    found = {key: diagnose(rows) for key, rows in by_length.items()}
    known = [losses(rows) for key, rows in by_length.items() if found[key].positive]
    everywhere = pd.concat(by_length.values())
    exact = set(everywhere.loc[exact_softmax(everywhere), "series"])
    names = sorted({name for own in known for name in own} - exact)
    against_softmax = {
        (key, one["attention"]): {name: one[name] for name in _DIFFERENCE} | {"loss is": one["verdict"]}
        for key, rows in by_length.items()
        for one in comparisons(rows, key)
        if one["against"] == found[key].positive
    }
    rows: list[dict[str, Any]] = []
    for name in names:
        mechanism = everywhere.loc[everywhere["series"] == name, MECHANISM].iloc[0].to_dict()
        for key, own in by_length.items():
            trained = own.loc[own["series"] == name, [*STEP, "disturbance"]]
            # A step that is not faster is an answer without a loss: it has the model and task of the others.
            timed = trained if len(trained) else own.head(1).assign(**mechanism, disturbance=None)
            row = {"task": key[0], "n": key[1], "attention": name, **_speed(timed, speeds)}
            row |= against_softmax.get((key, name), {})
            is_equal = _is_equal(row["step"], row.get("loss is"))
            rows.append(row | {"kind": key[0], "series": name, "is equal": is_equal})
        lines = rows[-len(by_length) :]
        answer = _answer({row["n"]: row["is equal"] for row in lines})
        for row in lines:
            row["equal from"] = answer
    return rows


def _is_equal(step: object, loss: object) -> bool | None:
    """Whether a mechanism is faster and as good: False if either is known to be false, None if that is unknown."""
    is_faster = None if step == UNDECIDED or pd.isna(step) else step == "faster"
    is_good = None if loss in (None, UNDECIDED, BLIND) else loss in (BETTER, EQUIVALENT)
    if False in (is_faster, is_good):
        return False
    return None if None in (is_faster, is_good) else True


def _answer(by_length: dict[int, bool | None]) -> str:
    ns = {known: [n for n, is_equal in sorted(by_length.items()) if is_equal is known] for known in (True, False, None)}
    first = min(ns[True], default=None)
    at = " and ".join(f"{n:,}" for n in ns[None])
    if first is None:
        return f"{UNKNOWN} at n = {at}" if at else f"none up to n = {max(by_length):,}"
    no_more = " and ".join(f"{n:,}" for n in ns[False] if n > first)
    more = ", ".join(filter(None, [f"{UNKNOWN} at {at}" * bool(at), f"not at {no_more}" * bool(no_more)]))
    return f"{first:,}" + (f" ({more})" if more else "")


def _speed(own: pd.DataFrame, speeds: _Steps) -> dict[str, object]:
    """The speed of one series at one length: the timed step that agrees in `STEP`."""
    found = speeds.get(tuple(own.iloc[0][STEP]), {})
    both = pd.DataFrame({"disturbance": [*own["disturbance"], found.get("disturbance")]})
    return {**{name: found.get(name, np.nan) for name in _SPEED}, "disturbed": disturbance(both)}


def _speeds(frame: pd.DataFrame) -> pd.DataFrame:
    """Speed of each step over the best exact softmax, one row per `STEP`; interleaved rounds are preferred."""
    steps = frame[frame["bench"].isin(("compare_train_step", "train_step")) & (frame["metric"] == "step_time")]
    if steps.empty:
        return pd.DataFrame(columns=[*STEP, *_SPEED, "disturbance"])
    steps = steps.assign(work=work(steps))
    facets = ("dtype", "causal", "inputs", "settings", "seed", "num_heads", "head_dim")
    parts = [_over_best(settle(rows, facets)[0], str(bench)) for bench, rows in steps.groupby("bench")]
    return pd.concat(parts).drop_duplicates(STEP)


def _over_best(steps: pd.DataFrame, bench: str) -> pd.DataFrame:
    """Speed over the fastest exact softmax of the same cell (train_step: of the same model, task and batch)."""
    is_apart = bench == "train_step"
    where = [name for name in STEP if name not in (*MECHANISM, "dtype")]
    steps = newest(steps, STEP) if is_apart else steps.sort_values("ended", ascending=False, kind="stable")
    own = where if is_apart else ["cell_id"]
    rows = []
    for _, group in steps.groupby(own, sort=False):
        exact = group[exact_softmax(group)]
        if len(exact):
            best = exact.loc[exact["value"].idxmin()]
            for place, row in group.drop(index=exact.index).to_dict("index").items():
                both = {"disturbance": disturbance(group.loc[[best.name, place]])}
                rows.append({**row, **_ratio(best, row, is_apart), **both})
    return pd.DataFrame(rows, columns=[*steps.columns, *_SPEED])[[*STEP, *_SPEED, "disturbance"]]


def _ratio(best: pd.Series, row: dict[str, object], is_apart: bool) -> dict[str, object]:
    if not is_apart:
        ratio = ratio_interval(best["raw"], row["raw"])  # type: ignore[arg-type]
        said = (ratio.median, ratio.low, ratio.high, ratio.verdict, INTERLEAVED)
    else:
        value, low, high = (float(str(row[name])) for name in ("value", "low", "high"))
        ends = best["low"] / high, best["high"] / low
        word = "faster" if ends[0] > DRIFT else "slower" if ends[1] < 1 / DRIFT else UNDECIDED
        is_long = hours_apart(pd.Series([best["ended"], row["ended"]])) > MOST_HOURS
        said = (best["value"] / value, *ends, *((UNDECIDED, LONG_APART) if is_long else (word, APART)))
    return dict(zip(_SPEED, said, strict=True))
