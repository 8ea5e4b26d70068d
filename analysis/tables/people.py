"""Readable tables: words and units in the header, a value and its interval in one cell, at most a page.

The CSV of the same name has every row and column, with seven digits.
"""

import itertools
from collections.abc import Callable

import pandas as pd

from analysis.controls import BLIND
from analysis.formats import foldable, markdown, with_intervals
from analysis.selection import PASSES, mask
from analysis.training import BENCHES

MOST = 30
"""Most rows of a readable table."""
WORDS = {
    **{"attention": "mechanism", "seq_len": "n (tokens)", "n": "n (tokens)", "causal": "mask", "d": "size d"},
    **{"peer": "package's mechanism", "mib": "peak memory (MiB)", "peer_mib": "the package's (MiB)"},
    **{"ms": "time (ms)", "steps/s": "speed (steps/s)", "of the reference (%)": "the same of the plain reference (%)"},
    **{"share of the ceiling (%)": "achieved share of the ceiling (%)", "gate, median (s)": "time of the check (s)"},
    **{"share of the cell, median (%)": "share of the cell's time (%)", "largest (%)": "the largest share (%)"},
    **{"of": "which is that of", "cells": "cells measured", "bench": "benchmark"},
    **{"ours / paper": "ours over the paper's", "failed": "seeds that failed"},
    **{"paper (M)": "the paper's (millions)", "ours (M)": "ours (millions)", "counted (M)": "counted (millions)"},
    **{"heads": "heads", "head dim": "size of a head", "batch": "sequences in a batch"},
    **{"task is": "whether the task tells mechanisms apart", "best of": "learning rates tried"},
}
"""Columns of the CSVs, in words; the names of other columns are words already."""
VALUES: dict[str, Callable[[object], object]] = {
    "causal": mask,
    "pass": lambda name: PASSES.get(str(name), "" if pd.isna(name) else name),
    "bench": lambda name: (
        f"training step, {BENCHES[str(name)]}" if str(name) in BENCHES else str(name).replace("_", " ")
    ),
}


SETTINGS = ("task is", "layers", "heads", "head dim", "dtype", "learning rate", "best of", "seeds", "failed")
"""Columns about our runs, which are empty in rows that only a paper has."""


def readable(name: str, table: pd.DataFrame, says: str = "", linked: bool = True) -> str:
    """The table in Markdown: what it `says`, the rows, what they have in common, and where the rest is.

    `linked` adds a link to the CSV of the same name in the same folder.
    """
    shown = VIEWS[name](table) if name in VIEWS else table
    for column in VALUES.keys() & set(shown):
        shown = shown.assign(**{column: shown[column].map(VALUES[column])})
    text = with_intervals(pd.DataFrame({column: shown[column].map(_cell) for column in shown}, dtype=object))
    # Rows that only a paper has are empty in the columns about our runs.
    values = {column: set(text[column]) - ({""} if column in SETTINGS else set()) for column in text}
    same = [column for column in foldable(text) if len(values[column]) < 2]
    common = [f"{WORDS.get(column, column)} {value}" for column in same for value in values[column] if value]
    text = text.drop(columns=same).rename(columns=WORDS)
    parts = [says, _told_apart(table) if "task is" not in shown else "", markdown(text[:MOST])]
    parts += [f"In all rows that were measured here: {'; '.join(common)}."] if common else []
    cut = f"These are {MOST} of {len(text)} rows. " if len(text) > MOST else ""
    parts.append(cut + (f"All rows and columns, with seven digits: [{name}.csv]({name}.csv)." if linked else ""))
    return "\n\n".join(filter(None, parts))


def _told_apart(table: pd.DataFrame) -> str:
    """A sentence on which tasks can tell mechanisms apart, according to their controls."""
    if "task is" not in table:
        return ""
    by_word = table.dropna(subset="task is").groupby("task is")
    words = {word: dict.fromkeys(f"{row.task}, n = {row.n}" for row in rows.itertuples()) for word, rows in by_word}
    said = [f"{word}: {'all tasks' if len(words) == 1 else '; '.join(tasks)}" for word, tasks in words.items()]
    return f"By their controls, whether they can tell mechanisms apart: {'. '.join(said)}."


def _cell(value: object) -> str:
    """A number with three significant digits, or as an integer from 1000 on."""
    if value is None or pd.isna(value):
        return ""
    if not isinstance(value, float):
        return str(value)
    return f"{value + 0:,.0f}" if abs(value) >= 999.5 or value == int(value) else f"{value:.3g}"  # -0.0 + 0 is 0.0


def _interval(rows: pd.DataFrame, value: str, low: str, high: str) -> pd.Series:
    """`1.18 [1.13, 1.21]` for each row; empty without a value."""
    texts = []
    for middle, least, most in zip(rows[value], rows[low], rows[high], strict=True):
        ends = f" [{_cell(least)}, {_cell(most)}]" if pd.notna(least) and not least == middle == most else ""
        texts.append("" if pd.isna(middle) else f"{_cell(middle)}{ends}")
    return pd.Series(texts, rows.index, dtype=object)


def _crossover(table: pd.DataFrame) -> pd.DataFrame:
    """Each mechanism at the longest length, the fastest first; one dtype only if there are too many rows."""
    exact = {"flash", "softmax"} | {str(best).rpartition(" ")[0] for best in table["best"]}
    rows = table[~table["attention"].isin(exact)].sort_values("seq_len", kind="stable")
    curve = ["attention", "dtype", "causal", "pass"]
    throughout = {key: _throughout(own) for key, own in rows.groupby(curve)}
    rows = rows.drop_duplicates(curve, keep="last")
    if len(rows) > MOST:
        rows = rows[rows["dtype"] == max(set(rows["dtype"]), key=lambda name: ((rows["dtype"] == name).sum(), name))]
    rows = rows.sort_values(["causal", "pass", "over_best"], ascending=[True, True, False], kind="stable")
    least, most = (table.groupby(curve)["seq_len"].transform(end)[rows.index] for end in ("min", "max"))
    # An end outside the measured lengths is shown as `below` the shortest or `above` the longest.
    low = rows["from_low"].map(_cell).where(rows["from_low"] >= least, least.map("below {}".format))
    high = rows["from_high"].map(_cell).where(rows["from_high"] <= most, most.map("above {}".format))
    start = rows["from_seq_len"].map(_cell) + " [" + low + ", " + high + "]"
    start = start.where(rows["from_seq_len"].notna(), "")
    start = start.where(start != "", [throughout[key] for key in rows[curve].itertuples(index=False, name=None)])
    columns = ["attention", "causal", "pass", "dtype", "seq_len"]
    shown = rows[columns].assign(**{
        "speed over the best exact softmax": _interval(rows, "over_best", "best_low", "best_high"),
        "verdict": rows["best_verdict"],
        "faster from n (tokens)": start,
        "best exact softmax": rows["best"],
        "interval": rows["interval"],
    })  # fmt: skip
    return shown.reset_index(drop=True)


def _throughout(rows: pd.DataFrame) -> str:
    """In words, where the rounds have no crossing: whether it is faster at all lengths, and which are ties."""
    if not (rows["over_best"] > 1).all():
        return "none measured"
    ties = rows.loc[rows["best_verdict"] != "faster", "seq_len"]
    return f"all measured, ties at n = {', '.join(map('{:,}'.format, ties))}" if len(ties) else "all measured"


def _trained(table: pd.DataFrame) -> pd.DataFrame:
    """One row for each mechanism, one column for each task: the loss of text, else examples right in every answer."""
    columns = {}
    for (task, n), rows in table.groupby(["task", "n"], sort=True):
        is_text = str(task).startswith("language modelling")
        name = "loss (nats)" if is_text else "right (%)"
        texts = _interval(rows, name, f"lowest {name}", f"highest {name}")
        of_all = " (" + rows["seeds"].astype(str) + " of " + (rows["seeds"] + rows["failed"]).astype(str) + " seeds)"
        texts = texts.where(rows["failed"] == 0, texts + of_all)
        columns[f"{task}, n = {n}: {'' if is_text else 'wholly '}{name}"] = texts.set_axis(rows["attention"])
    return pd.DataFrame(columns).sort_index().fillna("").rename_axis("attention").reset_index()


def _arena(table: pd.DataFrame) -> pd.DataFrame:
    """One column for each task, one row for each mechanism; first ours, then the paper's, each below its data."""
    found = []
    for whose, column in {"here": "accuracy (%)", "Skeinformer": "Skeinformer (%)"}.items():
        rows = table[table[column].notna()]
        rows = rows.assign(base=rows["attention"].str.partition(" ")[0])
        rows["text"] = _interval(rows, column, "low", "high") if whose == "here" else rows[column].map(_cell)
        # Settings are named where a task has several of a mechanism, lengths where it has several.
        several = rows.duplicated(["task", "n", "base"], keep=False)
        lengths = rows.groupby("task")["n"].transform("nunique") > 1
        name = rows["attention"].where(several, rows["base"])
        rows["label"] = name.where(~lengths, name + rows["n"].map(", n = {}".format))
        data = rows.drop_duplicates(["task", "n", "source"]).assign(label="(data)")
        data["text"] = data["source"] + data["n"].map(", n = {}".format)
        every = pd.concat([data, rows])
        wide = every.pivot_table("text", "label", "task", aggfunc=" or ".join, fill_value="")
        found.append(wide.reset_index().assign(measured=whose))
    both = pd.concat(found).fillna("")
    tasks = {name: f"{name}: right (%)" for name in table["task"]}
    return both[["measured", "label", *tasks]].rename(columns={"label": "attention", **tasks})


def _beside(table: pd.DataFrame, keys: list[str], columns: dict[str, pd.Series]) -> pd.DataFrame:
    """One row for each combination of keys; each column has values of some of the table's rows."""
    wide = table[keys].drop_duplicates()
    for name, values in columns.items():
        column = table.loc[values.index, keys].assign(**{name: values})
        wide = wide.merge(column.drop_duplicates(keys, keep="last"), how="left", on=keys)
    return wide


def _peers(table: pd.DataFrame) -> pd.DataFrame:
    """The passes in columns beside each other."""
    keys = ["attention", "peer", "causal", "dtype", "seq_len"]
    speed = _interval(table, "speed", "low", "high") + " " + table["verdict"].astype(str)
    memory = [f"{_cell(own)} / {_cell(peer)}" if pd.notna(own) and pd.notna(peer) else ""
              for own, peer in zip(table["mib"], table["peer_mib"], strict=True)]  # fmt: skip
    parts = {"speed over the package": speed, "peak memory, ours / the package's (MiB)": pd.Series(memory, table.index)}
    passes = {name: table["pass"] == name for name in PASSES if (table["pass"] == name).any()}
    both = itertools.product(passes.items(), parts.items())
    return _beside(table, keys, {f"{PASSES[name]}: {words}": values[own] for (name, own), (words, values) in both})


def _gate(table: pd.DataFrame) -> pd.DataFrame:
    """One row for each benchmark and pass, with the range over all lengths."""
    rows = []
    for (bench, name), own in table.groupby(["bench", "pass"], dropna=False, sort=False):
        row = {"bench": bench, "pass": name, "n (tokens)": _range(own["n"]), "cells": own["cells"].sum()}
        row |= {"gate, median (s)": _range(own["gate, median (s)"])}
        most = own.loc[own["largest (%)"].idxmax()]
        row |= {"share of the cell, median (%)": _range(own["share of the cell, median (%)"])}
        rows.append(row | {"largest (%)": most["largest (%)"], "of": most["of"]})
    return pd.DataFrame(rows)


def _range(values: pd.Series) -> str:
    low, high = (_cell(end) for end in (values.min(), values.max()))
    return low if low == high else f"{low} to {high}"


def _steps(table: pd.DataFrame) -> pd.DataFrame:
    """The lengths that were measured here, with one column for each benchmark."""
    ours = table[table["status"].notna()]
    speed = _interval(ours, "steps/s", "low", "high").where(ours["status"] == "ok", ours["status"])
    dropped = ["bench", "status", "steps/s", "low", "high", "interval", "disturbed"]
    shared = [name for name in ours if name not in dropped]
    papers = [name for name in shared if str(name).endswith(")")]
    keys = [name for name in shared if name not in papers]
    columns = {f"{BENCHES[name]} (steps/s)": own for name, own in speed.groupby(ours["bench"], sort=False)}
    wide = _beside(ours, keys, columns)
    return wide.merge(ours[[*keys, *papers]].drop_duplicates(keys), how="left", on=keys)


def _measured(column: str) -> Callable[[pd.DataFrame], pd.DataFrame]:
    """Keep the rows that were measured here; the paper's other lengths are in the CSV."""
    return lambda table: table[table[column].notna()] if table[column].notna().any() else table


def _diagnostic(column: str, or_else: str | None = None) -> Callable[[pd.DataFrame], pd.DataFrame]:
    """Put rows last that rank nobody: of a blind task, or without a verdict in `column` and a value in `or_else`."""

    def view(table: pd.DataFrame) -> pd.DataFrame:
        is_missing = table[[column, or_else] if or_else else [column]].isna().all(axis=1)
        ranks_nobody = is_missing | (table[column] == BLIND)
        return pd.concat([table[~ranks_nobody], table[ranks_nobody]])

    return view


VIEWS: dict[str, Callable[[pd.DataFrame], pd.DataFrame]] = {
    "crossover_speeds": _crossover,
    "trained": _trained,
    "skeinformer_table1": _arena,
    "polysketchformer_tables2_3": _measured("perplexity"),
    "polysketchformer_table4": _steps,
    "peers": _peers,
    "gate_cost": _gate,
    "roofline_shares": lambda table: table.drop(columns=["MB", "FLOP/byte", "GFLOP/s or GB/s"]),
    "paired": _diagnostic("verdict"),
    "equal_quality": _diagnostic("loss is", "step"),
}
"""How tables are put in order or shortened that are longer than a page."""
