"""Which rows of the frame may stand side by side, and what to say of those that may not."""

import json
from collections.abc import Collection, Sequence
from fnmatch import fnmatchcase
from typing import Any

import pandas as pd

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
"""What must agree between cells that are shown side by side."""
_RUN = ["bench", "inputs", "weights", "input_settings"]
CODE = (*_RUN, "mechanisms", "code", "commit")
"""What the code of a cell depends on beside its mechanisms, and what is known of it."""
# A cell that did not get to measure may not know them.
_KNOWN_ONCE_MEASURED = {"device_name", "cpu_model", "threads", "torch"}
_BATCH = ("batch_size", "tokens")


class MissingRecords(ValueError):
    """The records do not suffice for what was asked; the message says what is missing."""


def choose(frame: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
    """The rows of these mechanisms, which figures have in this order.

    Names are labels, or what these begin with up to a blank (variants); `*` stands for anything. The
    exact softmaxes of a comparison stay as baselines of the speeds; they are not drawn.

    Raises:
        MissingRecords: one of the names is that of no mechanism of the frame.
    """
    places = {label: position(label, names) for label in frame["attention"].unique()}
    for name in names:
        if not any(position(label, [name]) == 0 for label in places):
            known = ", ".join(sorted({label.partition(" ")[0] for label in places}))
            raise MissingRecords(f"mechanisms={name}: has no records; there are {known}")
    place = frame["attention"].map(places)
    base = (frame["bench"] == "compare") & (frame["metric"] == "latency") & frame["exact"]
    base &= frame["function"] == "softmax"
    return frame.assign(place=place)[(place < len(names)) | base]


def position(label: str, names: Sequence[str]) -> int:
    """The index of the first of the names that matches a label; as many as there are where none does."""
    own = (label, label.partition(" ")[0])
    matches = (i for i, name in enumerate(names) if name in own or any(fnmatchcase(one, name) for one in own))
    return next(matches, len(names))


def variants(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """The hyperparameters of each row without the one that sets its size d."""
    return [
        {key: value for key, value in json.loads(text).items() if key != size}
        for text, size in zip(frame["hyperparameters"], frame["sized_by"], strict=True)
    ]


def series(frame: pd.DataFrame, apart_from_size: bool = False) -> pd.Series:
    """A name for each row that tells apart what a figure must not mix.

    The label, and what differs between the frame's cells of that label: hyperparameters (those of all sizes d have one
    name `apart_from_size`) and `impl`.
    """
    hyperparameters = variants(frame) if apart_from_size else [json.loads(text) for text in frame["hyperparameters"]]
    settings = [values | {"impl": impl} for values, impl in zip(hyperparameters, frame["impl"], strict=True)]
    by_label: dict[str, dict[str, set[str]]] = {}
    for label, values in zip(frame["attention"], settings, strict=True):
        for key, value in values.items():
            by_label.setdefault(label, {}).setdefault(key, set()).add(json.dumps(value))
    names = []
    for label, values in zip(frame["attention"], settings, strict=True):
        differing = [f"{k}={v}" for k, v in values.items() if len(by_label[label][k]) > 1]
        names.append(" ".join([label, *differing]))
    return pd.Series(names, index=frame.index, name="series")


def select(
    frame: pd.DataFrame, bench: str, keys: Sequence[str], *, metric: str | None = None, facets: Collection[str] = ()
) -> tuple[pd.DataFrame, list[str]]:
    """The cells of a benchmark that may stand in one figure, with a new column `series`, and sentences for its caption.

    They have one set of conditions, but for the `facets`; of each point (a series and the columns `keys`) it is the
    newest. Cells that did not measure the `metric` stay.
    """
    data = frame[frame["bench"] == bench]
    if metric is not None:
        data = data[data["metric"].isna() | (data["metric"] == metric)]
    data, notes = settle(require_ok(data, f"bench={bench}"), facets)
    data, older = newest(data.assign(series=series(data)), ["series", *keys])
    return data, notes + older


def require_ok(rows: pd.DataFrame, what: str) -> pd.DataFrame:
    """The rows themselves; raises `MissingRecords` where none of their cells ended ok, with `what` they are of."""
    if not (rows["status"] == "ok").any():
        raise MissingRecords(f"needs an ok record of {what}")
    return rows


def settle(frame: pd.DataFrame, facets: Collection[str] = ()) -> tuple[pd.DataFrame, list[str]]:
    """Keep the cells measured under one set of conditions, the most frequent, and say in a sentence what was left out.

    The conditions are `CONDITIONS` without `facets`, and the batch size, or the tokens per batch where
    those vary less. Cells that are not ok stay where nothing known of them contradicts.
    """
    measured = frame[frame["status"] == "ok"]
    if measured.empty:
        raise MissingRecords("no cell ended ok")
    batch = min(_BATCH, key=lambda name: measured[name].nunique())
    conditions = [name for name in (*CONDITIONS, batch) if name not in facets]
    cells = measured.drop_duplicates("cell_id")
    chosen = cells.groupby(conditions, dropna=False, sort=True).size().idxmax()
    agreeing = pd.Series(True, index=frame.index)
    left_out = []
    for name, value in zip(conditions, chosen, strict=True):
        missing = frame[name].isna()
        agrees = missing if pd.isna(value) else frame[name] == value
        if name in _KNOWN_ONCE_MEASURED:
            agrees = agrees | (missing & (frame["status"] != "ok"))
        agreeing &= agrees
        others = sorted({str(other) for other in measured.loc[measured[name] != value, name].dropna()})
        if others and name in ("settings", "input_settings"):
            left_out.append(f"other {name.replace('_', ' ')}")
        elif others:
            left_out.append(f"{name}={' or '.join(others)}")
    return frame[agreeing], [f"Left out: cells with {', '.join(left_out)}."] if left_out else []


def settle_each(frame: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """As `settle`, for each kind of inputs by itself: a new column `kind`, such as initialised or gaussian.

    The batch is no condition here: it says only how many sequences there are to average over.
    """
    kind = frame["weights"].where(frame["weights"].notna(), frame["inputs"])
    frame, notes = settle(frame.assign(kind=kind), facets=("inputs", "weights", "input_settings", *_BATCH))
    parts = []
    for _, rows in frame.groupby("kind"):
        if (rows["status"] == "ok").any():
            part, more = settle(rows, facets=_BATCH)
            parts.append(part)
            notes += more
    return pd.concat(parts), notes


def newest(frame: pd.DataFrame, keys: list[str]) -> tuple[pd.DataFrame, list[str]]:
    """The row of the newest cell for each combination of keys, and a sentence where others were left out."""
    rows = frame.sort_values("ended", kind="stable").drop_duplicates(keys, keep="last").sort_index()
    left_out = frame["cell_id"].nunique() - rows["cell_id"].nunique()
    return rows, [f"Older measurements of the same points are left out ({left_out})."] if left_out else []


def disturbance(rows: pd.DataFrame) -> str | None:
    """What disturbed the machine while any of the rows was measured; None where nothing did."""
    causes = {cause for text in rows["disturbance"].dropna() for cause in text.split("; ")}
    return "; ".join(sorted(causes)) or None


def unless_quiet(table: pd.DataFrame) -> pd.DataFrame:
    """The table, whose column `disturbed` has the cause of each row's disturbance: without it where there is none."""
    return table.drop(columns="disturbed") if table["disturbed"].isna().all() else table


def of_several_codes(rows: pd.DataFrame) -> list[str]:
    """The labels whose rows of one benchmark and kind of inputs were measured by different code, as far as is known.

    Those that measured the same mechanisms say so by their hashes, the others by whether they have a commit in common.
    """
    labels = set()
    for (label, *_), cells in rows[rows["status"] == "ok"].groupby(["attention", *_RUN], dropna=False):
        alike = [own for _, own in cells.groupby("mechanisms")]
        commits = set.intersection(*(set(own["commit"]) for own in alike))
        if not commits or any(own["code"].nunique(dropna=False) > 1 for own in alike):
            labels.add(label)
    return sorted(labels)
