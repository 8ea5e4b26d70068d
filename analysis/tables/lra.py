"""Tables of Long Range Arena: accuracy and time beside Skeinformer's, and the effect of each option of the protocol."""

import json
from collections.abc import Iterator

import numpy as np
import pandas as pd

from analysis import controls
from analysis.controls import ACCURACY, POINTS, Losses, compared
from analysis.frame import LATER, LOOKS
from analysis.paired import Difference, difference, verdicts
from analysis.published import published
from analysis.selection import MissingRecords, disturbance, exact_softmax, parsed, series, unless_quiet
from analysis.training import TASK_OPTIONS, panels, timed, trained_cells

LENGTHS = {"text": 4096, "listops": 2048, "retrieval": 4096, "pathfinder": 1024, "image": 1024}
"""Of the paper's examples, in tokens."""
TASKS = tuple(LENGTHS)
STAND_IN = "stand-in"
"""In the source of what is not the paper's data."""
SAME = {"flash": "softmax"}
"""Our names of mechanisms that the paper lists under another name."""
PAPERS = {"accuracy": "Skeinformer (%)", "minutes_per_1000_steps": "Skeinformer, minutes per 1,000 steps"}
MODEL_OPTIONS = ("dropout", "pooling")
OPTIONS = {"training": None, "model": MODEL_OPTIONS, "task": TASK_OPTIONS}
"""Settings that belong to the protocol, by group; None: all settings of the group but the learning rate."""
_SHAPE = ["batch_size", "num_heads", "head_dim", "dtype", "device"]
NEEDS = f"needs an ok record of bench=train with task={' or '.join(TASKS)}"


def accuracies(frame: pd.DataFrame) -> pd.DataFrame:
    """Accuracy and time on Long Range Arena beside all rows of the paper's Tables 1 and 2 (Skeinformer).

    Test examples that are right, in percent, with 95 % intervals over seeds and groups of test examples. Ours and the
    paper's numbers share a row only if the data and the length are the same; those of a stand-in or another length
    compare with none of the paper's. Ranks are given only if softmax beats every control. Times, in the CSV, are of
    runs on quiet cores, the paper's of a V100; `minutes in total` is for all training steps.
    """
    data, _ = trained_cells(frame, TASKS)
    rows = [row for key, own in panels(data) for row in _of_panel(key, own)]
    ours = pd.DataFrame(rows)
    theirs = _papers()
    table = ours.merge(theirs, on=["name", "theirs"], how="outer", sort=True)
    table = table.assign(
        task=table["task"].fillna(table["name"]),
        n=table["n"].fillna(table["name"].map(LENGTHS)).astype(int),
        source=table["source"].where(table["seeds"].notna(), "Skeinformer's data"),
        attention=table["attention"].fillna(table["theirs"]),
    )
    order = table["name"].map({name: i for i, name in enumerate(TASKS)})
    table = table.assign(order=order).sort_values(["order", "n", "task", "attention"], kind="stable")
    return unless_quiet(table.drop(columns=["order", "name", "theirs"]).reset_index(drop=True))


def _of_panel(key: tuple[str, int], rows: pd.DataFrame) -> Iterator[dict[str, object]]:
    """One row for each series of a task and length."""
    word, quiet = controls.diagnose(rows).word, timed(rows)
    values = {name: mean_error(of) for name, of in controls.error_rates(rows).items()}
    ranks = pd.Series({name: one.value for name, one in values.items()}).rank(method="min")
    for name, one in values.items():
        own, speed = rows[rows["series"] == name], quiet.loc[quiet["series"] == name, "value"]
        total = own[own["cell_id"].isin(quiet["cell_id"]) & (own["metric"] == "validation_seconds")]["value"]
        variant = str(own["attention"].iloc[0]).partition(" ")[0]
        task, source = own["inputs"].iloc[0], own["source"].dropna().iloc[0] if own["source"].notna().any() else None
        is_theirs = source is not None and STAND_IN not in source and key[1] == LENGTHS[task]
        high, low = one.interval() if one.seeds > 1 else (np.nan, np.nan)
        row: dict[str, object] = {"task": key[0], "n": key[1], "name": task, "source": source, "task is": word}
        row |= {"attention": name, "theirs": SAME.get(variant, variant) if is_theirs else None, "seeds": one.seeds}
        row |= {"accuracy (%)": 100 - 100 * one.value, "low": 100 - 100 * low, "high": 100 - 100 * high}
        row |= {"rank": ranks[name] if word == controls.DIAGNOSTIC else np.nan}
        row |= {"minutes per 1,000 steps": 1000 / 60 / speed.median(), "minutes in total": total.median() / 60}
        yield row | {"disturbed": disturbance(own)}


def _papers() -> pd.DataFrame:
    """The paper's numbers, one row for each task and mechanism."""
    columns = []
    for metric, name in PAPERS.items():
        of = published(metric)
        of = of[of["of"] == "Long Range Arena"].rename(columns={"attention": "theirs", "printed": name})
        columns.append(of.assign(name=of["at"].str.lower()).set_index(["name", "theirs"])[name].astype(float))
    return pd.concat(columns, axis=1).reset_index()


def mean_error(by_seed: Losses) -> Difference:
    """The mean over seeds and groups of examples; with one seed (or group) it has no interval."""
    values = controls.of_tested_units([by_seed[seed] for seed in sorted(by_seed)])
    if min(values.shape) > 1:
        return difference(values, np.zeros_like(values), (by_seed.chosen_from, 1))
    return Difference(float(values.mean()), np.nan, ((1, np.nan),), np.nan, np.nan, len(values), values.shape[1])


def protocols(frame: pd.DataFrame) -> pd.DataFrame:
    """The effect of each option of the protocol on Long Range Arena: one row for each task, mechanism and option.

    The difference, in points, is the accuracy with the option minus that with the protocol of most runs, paired by seed
    and group of test examples. Verdicts are corrected for all rows (Holm); `as good as` is within 2 points. `ahead of
    softmax` is the mechanism's lead with the usual protocol, the column after it with the option.
    """
    cells = frame[(frame["bench"] == "train") & frame["inputs"].isin(TASKS) & (frame["metric"] == ACCURACY)]
    cells = cells[cells["status"] == "ok"]
    if cells.empty:
        raise MissingRecords(NEEDS)
    keys = ["inputs", "seq_len", *_SHAPE, "rest"]
    found = [
        (row | dict(zip(_SHAPE, key[2:], strict=False)) | {"learning rate": json.loads(key[-1])[1]}, one)
        for key, rows in _with_options(cells).groupby(keys)
        for row, one in _changes(key[0], key[1], rows)
    ]
    if not found:
        raise MissingRecords(f"{NEEDS}, and of the same with one option changed, with two seeds or more of both")
    table = pd.DataFrame([row for row, _ in found])
    # They are said only where they tell rows apart.
    alike = table.duplicated(["task", "n", "attention", "option"]).any()
    said = [name for name in [*_SHAPE, "learning rate"] if alike and table[name].nunique() > 1]
    table = table.drop(columns=[name for name in [*_SHAPE, "learning rate"] if name not in said])
    words = [word for _, word in verdicts((one for _, one in found), POINTS)]
    return unless_quiet(table.assign(verdict=words))


def _with_options(cells: pd.DataFrame) -> pd.DataFrame:
    """Add `options`, the protocol's settings as JSON by `group.key`, and `rest`: of the task and the rate.

    The other settings of the model join the hyperparameters: another model is another series and no option.
    """
    options, rest, models = [], [], []
    for text in cells["settings"]:
        settings = json.loads(text)
        own: dict[str, object] = {}
        for group, names in OPTIONS.items():
            part = settings.get(group) or {}
            own |= {f"{group}.{key}": part[key] for key in part if names is None or key in names}
        task = {key: value for key, value in (settings.get("task") or {}).items() if key not in TASK_OPTIONS}
        rest.append(json.dumps([task, own.pop("training.learning_rate", None)], sort_keys=True))
        options.append(json.dumps(own, sort_keys=True))
        models.append({k: v for k, v in (settings.get("model") or {}).items() if k not in MODEL_OPTIONS})
    # Older records lack settings that are off in newer ones.
    models = [{key: one.get(key) or None for key in sorted(set().union(*models))} for one in models]
    both = zip(parsed(cells["hyperparameters"]), models, strict=True)
    hyperparameters = [json.dumps(own | {f"model.{k}": v for k, v in model.items()}) for own, model in both]
    model = [json.dumps(one) for one in models]
    return cells.assign(options=options, rest=rest, model=model, hyperparameters=hyperparameters)


def _changes(task: str, n: int, cells: pd.DataFrame) -> Iterator[tuple[dict[str, object], Difference]]:
    """A row and a difference for each mechanism with each protocol other than the most frequent one."""
    usual = cells["options"].value_counts().idxmax()
    newest = cells.assign(series=series(cells)).sort_values("ended")
    newest = newest.drop_duplicates(["options", "series", "seed"], keep="last")
    by_protocol = {text: controls.error_rates(rows) for text, rows in newest.groupby("options")}
    softmax = _softmax_of(newest[newest["options"] == usual])
    for text, by_name in by_protocol.items():
        for name, errors in by_name.items() if text != usual else ():
            one = compared(errors, by_protocol[usual].get(name, Losses()))
            if one is None:
                continue
            low, high = sorted(-100 * end for end in one.interval())
            row: dict[str, object] = {"task": task, "n": n, "attention": name, "option": _words(usual, text)}
            row |= {"usual (%)": _percent(by_protocol[usual][name]), "with it (%)": _percent(errors)}
            row |= {"difference (points)": -100 * one.value, "low": low, "high": high, "seeds": one.seeds}
            for column, protocol in (("ahead of softmax (points)", usual), ("with it (points)", text)):
                ahead = compared(by_protocol[protocol][name], by_protocol[protocol].get(softmax[name], Losses()))
                row[column] = None if ahead is None or name == softmax[name] else -100 * ahead.value
            yield row | {"disturbed": disturbance(newest[newest["series"] == name])}, one


def _softmax_of(rows: pd.DataFrame) -> dict[str, str]:
    """By series the exact softmax of its model, of most runs for a control with its own model; "" if missing."""
    exact = rows[exact_softmax(rows)]
    by_model = exact.groupby("model")["series"].agg(lambda names: names.value_counts().idxmax())
    usual = exact["series"].value_counts().index.tolist()[:1]
    found = {}
    for name, label, model in rows[["series", "attention", "model"]].itertuples(index=False):
        has_own = json.loads(model).get("name") == label
        found[name] = by_model.get(model, usual[0] if has_own and usual else "")
    return found


def _percent(errors: Losses) -> float:
    return 100 - 100 * mean_error(errors).value


def _words(usual: str, text: str) -> str:
    """The options that differ from the usual ones: `checkpoint=last`."""
    first, second = json.loads(usual), json.loads(text)
    names = [key for key in dict.fromkeys([*first, *second]) if first.get(key) != second.get(key)]
    # Only a protocol in which they decide something has the settings of looks.
    names = [key for key in names if key.partition(".")[2] not in LOOKS or (key in first and key in second)]
    settings = [key.partition(".")[2] for key in names]
    return ", ".join(f"{own}={second.get(key, LATER.get(own))}" for key, own in zip(names, settings, strict=True))
