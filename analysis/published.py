"""What the papers report of trained models, from `bench/published`, where each table names its source."""

import tomllib
from pathlib import Path

import pandas as pd

PUBLISHED = Path(__file__).parents[1] / "bench" / "published"
PAPERS = ("polysketchformer", "skeinformer", "thesis")
COLUMNS = ("paper", "source", "metric", "of", "conditions", "hardware", "axis", "at", "row", "layers", "attention")


def published(metric: str) -> pd.DataFrame:
    """One row for each number that a paper prints of a metric, and for each variant of the zoo that its row is.

    Returns:
        `COLUMNS` and `printed`: the number, or the text that stands in its place, such as `OOM`.
    """
    rows = []
    for paper in PAPERS:
        for table in tomllib.loads((PUBLISHED / f"{paper}.toml").read_text())["table"]:
            for row in table["rows"] if table["metric"] == metric else ():
                common = {key: value for key, value in (table | row).items() if key in COLUMNS} | {"row": row["row"]}
                rows += [
                    common | {"attention": attention, "at": at, "printed": printed}
                    for attention in row["mechanisms"]
                    for at, printed in zip(table["at"], row["values"], strict=True)
                ]
    return pd.DataFrame(rows, columns=[*COLUMNS, "printed"])


def beside(table: pd.DataFrame, metric: str, of: str | None = None) -> pd.DataFrame:
    """A table of ours, with `attention` and `n`, and a column for each paper and each `of` it reports the metric of.

    The papers' numbers at lengths that are not ours have rows of their own; two rows of a paper that are one variant of
    the zoo share a cell ("4.78 or 5.46").
    """
    theirs = published(metric)
    theirs = theirs[theirs["attention"].isin(table["attention"]) & ((theirs["of"] == of) | (of is None))]
    if theirs.empty:
        return table
    theirs = theirs.assign(column=theirs["of"] + " (" + theirs["paper"] + ")", n=theirs["at"].astype("int64"))
    keys = ["attention", "n"]

    def shared(printed: pd.Series) -> object:
        return printed.iloc[0] if len(printed) == 1 else " or ".join(map(str, printed))

    columns = theirs.pivot_table(index=keys, columns="column", values="printed", aggfunc=shared, sort=False)
    return table.merge(columns.reset_index(), on=keys, how="outer", sort=True)
