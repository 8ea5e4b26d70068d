"""Which rows are comparable. Rows left out are logged."""

import json
import logging
from collections.abc import Collection, Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Any

import pandas as pd

CONDITIONS = (
    *("num_heads", "head_dim", "dtype", "causal", "inputs", "weights", "input_settings", "seed", "settings"),
    *("device", "device_name", "cpu_model", "threads", "torch"),
)
"""Columns that must agree between the cells of a figure or table."""
_KIND = ["attention", "hyperparameters", "impl", "sized_by"]
_RUN = ["bench", "inputs", "weights", "input_settings"]
# Cells that ended before they measured may lack these.
_KNOWN_ONCE_MEASURED = {"device_name", "cpu_model", "threads", "torch"}
PASSES = {"forward": "forward", "backward": "backward", "forward_backward": "forward + backward"}
"""The values of the column `pass` in words."""
_CONTROLS = ("v_mean", "local", "identity")
_BATCH = ("batch_size", "tokens")
_LOG = logging.getLogger(__name__)


class MissingRecords(ValueError):
    """A figure, table or folder lacks records; the message says which."""


def compact(frame: pd.DataFrame) -> pd.DataFrame:
    """The same frame, of which rows are selected several times as fast.

    Pandas selects rows of all columns of objects at once, and of columns of strings one by one.
    """
    texts = {name: object for name, dtype in frame.dtypes.items() if isinstance(dtype, pd.StringDtype)}
    return frame.astype(texts).copy()  # a copy joins the columns of each type


def choose(frame: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
    """The rows of the named mechanisms; figures show them in this order.

    A name is a label, or the part of a label before the first blank (the variant); `*` matches anything. The exact
    softmaxes of bench=compare stay as baselines of the speeds, but are not drawn. Those of bench=train and of timed
    training steps stay, with the controls, and are drawn: without them no figure could say whether the task tells
    anything, or what a step costs beside softmax's.

    Raises:
        MissingRecords: a name matches no mechanism of the frame.
    """
    places = {label: position(label, names) for label in frame["attention"].unique()}
    for name in names:
        if not any(position(label, [name]) == 0 for label in places):
            known = ", ".join(sorted({label.partition(" ")[0] for label in places}))
            raise MissingRecords(f"mechanisms={name}: has no records; there are {known}")
    place = frame["attention"].map(places)
    exact = exact_softmax(frame)
    base = (frame["bench"] == "compare") & (frame["metric"] == "latency") & exact
    base |= frame["bench"].isin(("train", "train_step", "compare_train_step")) & (exact | controls(frame))
    return frame.assign(place=place)[(place < len(names)) | base]


def position(label: str, names: Sequence[str]) -> int:
    """The index of the first name that matches a label; `len(names)` if none does."""
    own = (label, label.partition(" ")[0])
    matches = (i for i, name in enumerate(names) if name in own or any(fnmatchcase(one, name) for one in own))
    return next(matches, len(names))


def parsed(texts: Iterable[str]) -> list[dict[str, Any]]:
    """Each row's JSON; rows with the same text share one dictionary, which nobody must change."""
    texts = list(texts)
    known = {text: json.loads(text) for text in set(texts)}
    return [known[text] for text in texts]


def variants(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """The hyperparameters of each row, without the one that sets the size d."""
    return [
        {key: value for key, value in settings.items() if key != size}
        for settings, size in zip(parsed(frame["hyperparameters"]), frame["sized_by"], strict=True)
    ]


def series(frame: pd.DataFrame, apart_from_size: bool = False) -> pd.Series:
    """The name of each row's line in a figure, such as `performer num_features=64`.

    It is the label, followed by the hyperparameters and `impl` that differ between the cells of that label. With
    `apart_from_size`, all sizes d share one name.
    """
    kind = frame.groupby(_KIND, dropna=False, sort=False).ngroup()  # rows are many, kinds of them are few
    kinds = frame[~kind.duplicated()]
    hyperparameters = variants(kinds) if apart_from_size else parsed(kinds["hyperparameters"])
    settings = [values | {"impl": impl} for values, impl in zip(hyperparameters, kinds["impl"], strict=True)]
    by_label: dict[str, dict[str, set[str]]] = {}
    for label, values in zip(kinds["attention"], settings, strict=True):
        for key, value in values.items():
            by_label.setdefault(label, {}).setdefault(key, set()).add(json.dumps(value))
    names = []
    for label, values in zip(kinds["attention"], settings, strict=True):
        differing = [f"{k}={v}" for k, v in values.items() if len(by_label[label][k]) > 1]
        names.append(" ".join([label, *differing]))
    return pd.Series([names[one] for one in kind], index=frame.index, name="series")


def exact_softmax(rows: pd.DataFrame) -> pd.Series:
    """Which rows compute softmax exactly, up to rounding: the baseline of speed and memory."""
    return rows["exact"].astype(bool) & (rows["function"] == "softmax")


def controls(rows: pd.DataFrame) -> pd.Series:
    """Which rows are of a control; older records are recognised by the mechanism's name."""
    return rows["control"].astype(bool) | rows["mechanism"].isin(_CONTROLS)


def references(rows: pd.DataFrame) -> pd.Series:
    """Which rows are references for the others: exact softmax or, if none was measured, the controls."""
    exact = exact_softmax(rows)
    return exact if (exact & (rows["status"] == "ok")).any() else controls(rows)


def select(
    frame: pd.DataFrame,
    bench: str,
    keys: Sequence[str],
    *,
    metric: str | None = None,
    facets: Collection[str] = (),
    panels: Sequence[str] = (),
    among: pd.Series | None = None,
) -> tuple[pd.DataFrame, list[str]]:
    """The comparable cells of a benchmark, with a new column `series`, and sentences for the caption.

    `settle` chooses them; each point (a series and the columns `keys`) keeps its newest cell. Cells without a metric
    (they failed) stay.
    """
    data = frame[frame["bench"] == bench]
    if metric is not None:
        data = data[data["metric"].isna() | (data["metric"] == metric)]
    data, notes = settle(require_ok(data, f"bench={bench}"), facets, panels, among)
    return newest(data.assign(series=series(data)), ["series", *panels, *keys]), notes


def several_lengths(frame: pd.DataFrame, bench: str, panels: Sequence[str] = ("causal",)) -> pd.DataFrame:
    """Drop the benchmark's panels that have a single length, if another panel has more."""
    of_panel = pd.Series([*frame[[*panels]].itertuples(index=False, name=None)], frame.index)
    cells = frame[(frame["bench"] == bench) & (frame["status"] == "ok")]
    lengths = cells["seq_len"].groupby(of_panel[cells.index]).nunique()
    few = [*lengths.index[lengths == 1]]
    if len(few) in (0, len(lengths)):
        return frame
    _LOG.info("bench=%s: left out what has one length: %s", bench, "; ".join(_panel(panels, one) for one in few))
    return frame[(frame["bench"] != bench) | ~of_panel.isin(few)]


def require_ok(rows: pd.DataFrame, what: str) -> pd.DataFrame:
    """Return the rows; raise `MissingRecords`, naming `what`, if none of their cells ended ok."""
    if not (rows["status"] == "ok").any():
        raise MissingRecords(f"needs an ok record of {what}")
    return rows


def settle(
    frame: pd.DataFrame, facets: Collection[str] = (), panels: Sequence[str] = (), among: pd.Series | None = None
) -> tuple[pd.DataFrame, list[str]]:
    """Keep the cells measured under one set of conditions, with the reference they are compared with if there is one.

    The conditions are `CONDITIONS` without `facets` and `panels`, plus the batch size, or the tokens per batch if those
    vary less. First come conditions under which a reference (`among`; by default `references`) was measured together
    with another mechanism; among these, or among all if there are none, the most frequent are kept. A panel is the rows
    that agree in the columns `panels`. If the common conditions leave a panel empty or without its reference, that
    panel gets its own, and the caption says which. Rows left out are logged. Failed cells stay, unless a condition
    that is known of them differs.

    Raises:
        MissingRecords: no cell ended ok.
    """
    reference = references(frame) if among is None else among
    measured = frame.loc[frame["status"] == "ok", ["bench", "cell_id", *{*CONDITIONS, *_BATCH, *panels}]]
    if measured.empty:
        raise MissingRecords("no cell ended ok")
    batch = min(_BATCH, key=lambda name: measured[name].nunique())
    asked = [name for name in (*CONDITIONS, batch) if name not in facets and name not in panels]
    # What is equal in all rows decides nothing, and takes time.
    conditions = [name for name in asked if frame[name].nunique(dropna=False) > 1] or asked[:1]
    common = _chosen(measured, reference, conditions, panels)
    kept, own = _agreeing(frame, common), []
    for value, rows in frame.groupby([*panels], dropna=False) if panels else ():
        ok = measured.loc[measured.index.intersection(rows.index)]
        here = ok[kept[ok.index]]
        groups = ok.groupby([*conditions], dropna=False)
        if _compared(here, reference) or not (here.empty or any(_compared(part, reference) for _, part in groups)):
            continue
        if not ok.empty:
            other = _chosen(ok, reference, conditions)
            kept[rows.index] = _agreeing(rows, other)
            own.append(f"{_panel(panels, value)}: {_words({k: v for k, v in other.items() if v != common[k]})}")
    left = measured[~kept[measured.index]]
    if len(left):
        varying = [name for name in conditions if measured[name].nunique(dropna=False) > 1]
        values = {name: {str(one) for one in left[name].dropna()} - _kept(measured, kept, name) for name in varying}
        others = {name: " or ".join(sorted(own)) for name, own in values.items()}
        cells = left["cell_id"].nunique()
        _LOG.info("bench=%s: left out %d cells, with %s", measured["bench"].iloc[0], cells, _words(others))
    return frame[kept], [f"Measured under other conditions: {'; '.join(own)}."] if own else []


def _kept(measured: pd.DataFrame, kept: pd.Series, name: str) -> set[str]:
    """The values of a condition among the cells that are kept."""
    return {str(one) for one in measured.loc[kept[measured.index], name].dropna()}


def _chosen(
    measured: pd.DataFrame, reference: pd.Series, conditions: Sequence[str], panels: Sequence[str] = ()
) -> dict[str, Any]:
    """The values of the conditions to keep: those of most panels with a reference, then of most cells."""
    best: tuple[tuple[int, int], dict[str, Any]] | None = None
    for values, rows in measured.groupby([*conditions], dropna=False, sort=True):
        parts = [rows] if not panels else [part for _, part in rows.groupby([*panels], dropna=False)]
        rank = (sum(_compared(part, reference) for part in parts), rows["cell_id"].nunique())
        if best is None or rank > best[0]:
            best = rank, dict(zip(conditions, values, strict=True))
    assert best is not None
    return best[1]


def _compared(rows: pd.DataFrame, reference: pd.Series) -> bool:
    """Whether the rows have both a reference and another mechanism."""
    own = reference[rows.index]
    return bool(own.any() and not own.all())


def _agreeing(frame: pd.DataFrame, chosen: dict[str, Any]) -> pd.Series:
    """Which rows meet the conditions; a failed cell also does where its value is unknown."""
    agreeing = pd.Series(True, index=frame.index)
    for name, value in chosen.items():
        missing = frame[name].isna()
        agrees = missing if pd.isna(value) else frame[name] == value
        if name in _KNOWN_ONCE_MEASURED:
            agrees = agrees | (missing & (frame["status"] != "ok"))
        agreeing &= agrees
    return agreeing


def _words(conditions: dict[str, Any]) -> str:
    """`dtype=bfloat16, other settings`: JSON values are not spelled out."""
    words = [f"other {name.replace('_', ' ')}" if name in ("settings", "input_settings") else f"{name}={value}"
             for name, value in conditions.items() if not pd.isna(value) and value != ""]  # fmt: skip
    return ", ".join(words) or "other conditions"


def _panel(panels: Sequence[str], values: tuple[Any, ...]) -> str:
    return ", ".join(
        mask(value) if name == "causal" else f"{name}={value}" for name, value in zip(panels, values, strict=True)
    )


def mask(causal: Any) -> str:
    """The value of the column `causal` in words."""
    return "causal" if causal else "not causal"


def settle_each(frame: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """Apply `settle` to each kind of inputs separately; a new column `kind` names it, such as initialised or gaussian.

    Batch sizes may differ here: the batch only says over how many sequences an error is averaged.
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


def newest(frame: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """The row of the newest cell for each combination of keys; the number of older cells is logged."""
    rows = frame.sort_values("ended", kind="stable").drop_duplicates(keys, keep="last").sort_index()
    if left_out := frame["cell_id"].nunique() - rows["cell_id"].nunique():
        _LOG.info("left out %d older measurements of the same points", left_out)
    return rows


def disturbance(rows: pd.DataFrame) -> str | None:
    """What disturbed the machine while any of the rows was measured; None if nothing did."""
    causes = {cause for text in rows["disturbance"].dropna() for cause in text.split("; ")}
    return "; ".join(sorted(causes)) or None


def unless_quiet(table: pd.DataFrame) -> pd.DataFrame:
    """Drop the column `disturbed` (each row's cause of disturbance) if it is empty."""
    return table.drop(columns="disturbed") if table["disturbed"].isna().all() else table


def of_several_codes(rows: pd.DataFrame) -> list[str]:
    """Labels whose cells of one benchmark and kind of inputs may have been measured by different code.

    Cells with the same mechanisms are compared by the hash of their sources, others by whether they share a commit.
    """
    labels = set()
    every = rows.loc[rows["status"] == "ok", ["attention", *_RUN, "mechanisms", "commit", "code"]].drop_duplicates()
    for (label, *_), cells in every.groupby(["attention", *_RUN], dropna=False):
        alike = [own for _, own in cells.groupby("mechanisms")]
        # Where git knows nothing, as of an installed package, nothing is known to differ.
        commits = set.intersection(*({*own["commit"].dropna()} or {None} for own in alike))
        if not commits or any(own["code"].nunique(dropna=False) > 1 for own in alike):
            labels.add(label)
    return sorted(labels)
