"""Tables of trained models: medians and ranges over seeds on the test split, beside the papers' numbers."""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from analysis import controls
from analysis.published import beside
from analysis.selection import disturbance, series, unless_quiet
from analysis.training import PANEL, over_seeds, perplexity, timed, trained_cells

SPREAD = {"": "value", "lowest ": "low", "highest ": "high"}


def trained(frame: pd.DataFrame) -> pd.DataFrame:
    """Loss and right answers of trained models: the median over seeds, in brackets the lowest and the highest.

    Text is compared by its loss in nats (lower is better), the other tasks by how many examples are right in every
    answer (higher is better). Rows are sorted by name, because a few short runs are no ranking. `steps/s`, in the CSV,
    are of runs on quiet cores of one machine, which may be days apart.
    """
    data, _ = trained_cells(frame)
    # For text, the accuracy of tokens replaces that of examples.
    is_text = data["inputs"] == "language_modelling"
    metric = data["metric"].mask(is_text & (data["metric"] == "example_accuracy"))
    data = data.assign(metric=metric.mask(is_text & (metric == "token_accuracy"), "example_accuracy"))
    table = _rows(data, {"loss (nats)": ("loss", 1), "right (%)": ("example_accuracy", 100)})
    speed = over_seeds(timed(data), "steps_per_second").set_index([*PANEL, "series"])["value"]
    table["steps/s"] = speed.reindex(pd.MultiIndex.from_frame(table[["task", "n", "attention"]])).to_numpy()
    is_text = table["task"].str.startswith("language modelling")
    table["right are"] = is_text.map({True: "tokens", False: "whole examples"})
    return table.sort_values(["task", "n", "attention"], kind="stable").reset_index(drop=True)


def perplexities(frame: pd.DataFrame) -> pd.DataFrame:
    """Test perplexity beside the papers' (PolySketchFormer, Tables 2 and 3), and that of n-grams; lower is better.

    The median over seeds, in brackets the lowest and the highest. The papers' models have 12 or 13 layers of 12 heads x
    64, and were trained on other texts.
    """
    data, _ = trained_cells(frame, ["language_modelling"])
    table = _rows(data, {"perplexity": ("perplexity", 1)}, sizes=True)
    for name in ("unigram", "bigram"):
        losses = data[data["metric"] == f"{name}_loss"].groupby(PANEL)["value"].median()
        table[name] = [perplexity(losses.get(key, np.nan)) for key in zip(table["task"], table["n"], strict=True)]
    return beside(table, "perplexity")


def solved(frame: pd.DataFrame) -> pd.DataFrame:
    """Right answers in copying and induction beside the paper's (PolySketchFormer, Table 5 and Appendix F.2).

    Test examples that are right in every answer, in percent: the median over seeds, in brackets the lowest and the
    highest. The paper's numbers of other lengths have rows of their own.
    """
    data, _ = trained_cells(frame, ["selective_copying", "induction_heads"])
    tables = []
    for task, rows in data.groupby("inputs", sort=False):
        table = _rows(rows, {"right (%)": ("example_accuracy", 100)}, sizes=True)
        table = beside(table, "right", of=task).rename(columns={f"{task} (ICML)": "ICML (%)"})
        tables.append(table.assign(task=table["task"].fillna(task.replace("_", " "))))
    return pd.concat(tables, ignore_index=True)


def thesis(frame: pd.DataFrame) -> pd.DataFrame:
    """Final loss of sequence reversal beside the thesis' single run (Reizin).

    Ours is the median over seeds, in brackets the lowest and the highest. The thesis' other length has its own rows.
    """
    data, _ = trained_cells(frame, ["reversal"])
    table = beside(_rows(data, {"loss (nats)": ("loss", 1)}), "loss", of="reversal")
    return table.rename(columns={"reversal (thesis)": "thesis"})


def _rows(data: pd.DataFrame, metrics: Mapping[str, tuple[str, float]], sizes: bool = False) -> pd.DataFrame:
    """One row for each panel and series: `metrics` maps a column's name to a metric and the factor of its unit.

    With `sizes`, the model's sizes have their own columns and are left out of the mechanism's name.
    """
    keys = [*PANEL, "series"]
    cells = data.drop_duplicates("cell_id")
    first = cells.assign(name=series(cells)).drop_duplicates(keys).set_index(keys)
    ok = (cells["status"] == "ok").groupby([cells[key] for key in keys])
    found = controls.diagnoses(data)
    columns = {"task is": pd.Series([found[key[:2]].word for key in first.index], index=first.index)}
    columns |= {"attention": first["name"], "layers": first["layers"]} if sizes else {}
    columns |= {"heads": first["num_heads"], "head dim": first["head_dim"]} if sizes else {}
    columns |= {"dtype": first["dtype"], "learning rate": first["rate"], "best of": first["rates"]}
    columns |= {"seeds": ok.sum(), "failed": ok.size() - ok.sum()}
    for name, (metric, factor) in metrics.items():
        values = over_seeds(data, metric).set_index(keys)
        columns |= {f"{word}{name}": factor * values[of] for word, of in SPREAD.items()}
    columns |= {"disturbed": pd.Series({key: disturbance(own) for key, own in cells.groupby(keys)}, dtype=object)}
    table = unless_quiet(pd.DataFrame(columns)).reset_index(names=["task", "n", "series"])
    if sizes:
        return table.drop(columns="series")
    first = ["task", "n", "task is"]
    return table[[*first, *table.columns.difference(first, sort=False)]].rename(columns={"series": "attention"})
